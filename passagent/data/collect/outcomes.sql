-- The end of a trial (:run), or of every one (NULL), or where they stand.
WITH judged AS (
    SELECT run_id, status = 'ok' AS is_right, as_score,
        row_number() OVER (PARTITION BY run_id ORDER BY number, place) AS turn
    FROM nodes WHERE state = 'done' AND status != 'infrastructure'
        AND run_id IN (SELECT id FROM runs WHERE coalesce(id = :run, trial IS NOT NULL))
), figures AS (
    SELECT run_id, count(*) AS candidates, max(as_score) AS best_as, sum(is_right) AS correct,
        max(CASE WHEN turn = 1 THEN as_score END) AS first_as,
        max(CASE WHEN is_right THEN turn END) - min(CASE WHEN is_right THEN turn END) + 1 AS span
    FROM judged GROUP BY run_id
)
SELECT id, task, model, trial, state, input_tokens + output_tokens AS tokens, cost,
    (SELECT coalesce(sum(steps), 0) FROM episodes WHERE run_id = runs.id) AS steps,
    coalesce(candidates, 0) AS evaluations, first_as, best_as,
    coalesce(correct, 0) > 0 AS is_correct, coalesce(span > correct, 0) AS went_back
FROM runs LEFT JOIN figures ON run_id = runs.id WHERE coalesce(id = :run, trial IS NOT NULL) ORDER BY runs.rowid
