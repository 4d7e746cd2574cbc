-- Every finished episode that a model wrote, with the columns of docs/training.md.
SELECT e.id AS episode_id, r.id || '/' || e.number AS id, r.id AS run, e.number AS episode,
    NULL AS node, r.trial, r.task, r.task_key, r.operators, coalesce(e.model, r.model) AS model,
    r.device, i.role,
    r.subgraphs, e.parent_id,
    CASE WHEN e.best_as IS NULL THEN (SELECT n.status FROM nodes n WHERE n.episode_id = e.id
        AND n.state = 'done' ORDER BY n.place DESC LIMIT 1) ELSE 'ok' END AS status,
    e.best_as AS as_score,
    (SELECT p.as_score FROM nodes p WHERE p.id = e.parent_id AND p.status = 'ok') AS start_as,
    (SELECT n.as_score FROM nodes n WHERE n.episode_id = e.id AND n.status = 'ok' AND n.place = 1)
        AS first_as,
    e.gain, e.steps,
    (SELECT count(*) FROM nodes n WHERE n.episode_id = e.id AND n.state = 'done') AS evaluations,
    (SELECT count(*) FROM nodes n WHERE n.episode_id = e.id AND n.status = 'ok') AS correct,
    EXISTS (SELECT 1 FROM nodes a JOIN nodes b USING (episode_id) JOIN nodes c USING (episode_id)
        WHERE episode_id = e.id AND a.place < b.place AND b.place < c.place
        AND a.status = 'ok' AND b.status != 'ok' AND c.status = 'ok') AS recovered,
    e.input_tokens, e.output_tokens,
    (SELECT sum(cost) FROM calls WHERE calls.episode_id = e.id) AS cost,
    e.end_reason, r.model = :clients AS partial, e.created_at,
    (SELECT group_concat(DISTINCT evaluator_version) FROM nodes n JOIN evaluations v ON v.id = n.evaluation_id
        JOIN conditions ON conditions.id = v.conditions_id WHERE n.episode_id = e.id) AS evaluator_version
FROM episodes e JOIN runs r ON r.id = e.run_id
JOIN islands i ON i.run_id = e.run_id AND i.island = e.island
WHERE e.state = 'done' AND e.number > 0 AND EXISTS (SELECT 1 FROM steps WHERE episode_id = e.id)
ORDER BY e.id
