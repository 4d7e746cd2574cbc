#!/usr/bin/env bash
# The whole way on a CPU: collect, export, train, serve, run.   bash run.sh [DIR]   (DIR: a new directory)
set -euo pipefail
tiny=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-distill-tiny}
mkdir "$out"
cd "$out"

echo "== collect: one trial of each of three tasks, by a script and by the expert"
tasks=(example:quick_gelu example:add_layer_norm example:scale_mask_softmax)
quick=(--trials 1 --set evaluator.budget_s=0.05)
cp "$tiny/scripted.jsonl" .
passagent collect "${tasks[@]}" "${quick[@]}" --model replay:scripted.jsonl --parallel 1
passagent collect "${tasks[@]}" "${quick[@]}" --model expert

echo "== export: what left a correct pass with AS > 0.1"
passagent export --format trl --keep 'as_score > 0.1' --out data
passagent check data --runs-dir runs
passagent show data

echo "== train: a Qwen3 of two layers, random at first"
export OMP_WAIT_POLICY=passive # threads that wait spin otherwise: ten times slower where others use the cores
python "$tiny/student.py" data base
python "$tiny/../sft.py" --config "$tiny/trl.yaml" --model base --data data --output_dir student

echo "== serve: the student answers as openai/student"
python "$tiny/../serve.py" student --port 0 --most 64 --address address &
server=$!
trap 'kill $server' EXIT
until [ -s address ]; do
  kill -0 $server # it ends the script if the server has ended
  sleep 0.2
done

echo "== run: the student in the agent's loop"
passagent run example:quick_gelu --model openai/student --base-url "$(cat address)" \
  --iters 1 --islands 1 --config teacher --set agent.max_steps=2
passagent show last 1
