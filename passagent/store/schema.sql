-- The tables of passagent.db. docs/database.md says what each column means.
-- Whoever changes one raises SCHEMA in database.py.

CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    task TEXT NOT NULL,
    task_path TEXT NOT NULL,
    task_key TEXT NOT NULL,
    operators TEXT NOT NULL,
    model TEXT NOT NULL,
    device TEXT NOT NULL,
    seed INTEGER NOT NULL,
    islands INTEGER NOT NULL,
    iters INTEGER NOT NULL,
    config TEXT NOT NULL,
    version TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('running', 'stopped', 'failed', 'finished')),
    stop_reason TEXT,
    created_at TEXT NOT NULL,
    finished_at TEXT,
    elapsed_s REAL NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    evaluations INTEGER NOT NULL DEFAULT 0,
    wanted TEXT NOT NULL DEFAULT 'run' CHECK (wanted IN ('run', 'stop_after_episodes', 'stop')),
    environment TEXT,
    cost REAL NOT NULL DEFAULT 0,
    forked_run TEXT,
    forked_node INTEGER,
    subgraphs TEXT NOT NULL,
    trial INTEGER,
    gains TEXT
);
CREATE INDEX runs_by_task ON runs (task_key);
CREATE UNIQUE INDEX runs_trials ON runs (task_key, model, trial) WHERE trial IS NOT NULL;

CREATE TABLE sessions (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES runs (id),
    owner TEXT NOT NULL,
    version TEXT NOT NULL,
    config TEXT NOT NULL,
    prompts TEXT NOT NULL,
    environment TEXT NOT NULL,
    changes TEXT NOT NULL,
    joined_at TEXT NOT NULL,
    left_at TEXT,
    left_because TEXT
);
CREATE INDEX sessions_of_run ON sessions (run_id, id);

CREATE TABLE islands (
    run_id TEXT NOT NULL REFERENCES runs (id),
    island INTEGER NOT NULL,
    role TEXT NOT NULL,
    best_node INTEGER,
    best_as REAL,
    stagnant INTEGER NOT NULL DEFAULT 0,
    episodes INTEGER NOT NULL DEFAULT 0,
    nodes INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, island)
) WITHOUT ROWID;

CREATE TABLE episodes (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES runs (id),
    number INTEGER NOT NULL,
    island INTEGER NOT NULL,
    parent_id INTEGER REFERENCES nodes (id),
    migration TEXT,
    seed INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('running', 'done')),
    end_reason TEXT,
    steps INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    best_node INTEGER,
    best_as REAL,
    gain REAL,
    created_at TEXT NOT NULL,
    finished_at TEXT,
    model TEXT,
    hints TEXT,
    held_out TEXT,
    UNIQUE (run_id, number)
);
CREATE INDEX episodes_by_island ON episodes (run_id, island, number);
CREATE INDEX episodes_by_parent ON episodes (run_id, island, parent_id, number);
CREATE INDEX episodes_migrated ON episodes (run_id, island) WHERE migration IS NOT NULL;
CREATE INDEX episodes_running ON episodes (run_id, island) WHERE state = 'running';

CREATE TABLE messages (
    id INTEGER PRIMARY KEY,
    like_id INTEGER REFERENCES messages (id),
    body BLOB NOT NULL
);

CREATE TABLE steps (
    episode_id INTEGER NOT NULL REFERENCES episodes (id),
    seq INTEGER NOT NULL,
    message_id INTEGER NOT NULL REFERENCES messages (id),
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (episode_id, seq)
) WITHOUT ROWID;

CREATE TABLE calls (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES runs (id),
    island INTEGER NOT NULL,
    episode_id INTEGER NOT NULL REFERENCES episodes (id),
    step INTEGER NOT NULL,
    role TEXT NOT NULL,
    model TEXT NOT NULL,
    endpoint TEXT,
    attempt INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('started', 'done', 'broken', 'failed', 'lost')),
    stop_reason TEXT,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    cache_write_tokens INTEGER NOT NULL DEFAULT 0,
    reasoning_tokens INTEGER NOT NULL DEFAULT 0,
    cost REAL,
    latency_s REAL,
    error TEXT,
    started_at TEXT NOT NULL,
    finished_at TEXT
);
CREATE INDEX calls_of_episode ON calls (episode_id, step);
CREATE UNIQUE INDEX calls_paid_once ON calls (episode_id, step) WHERE state = 'done' AND role = 'agent';
CREATE INDEX calls_started ON calls (run_id) WHERE state = 'started';
CREATE INDEX calls_of_model ON calls (run_id, model);

CREATE TABLE nodes (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES runs (id),
    parent_id INTEGER REFERENCES nodes (id),
    island INTEGER NOT NULL,
    episode_id INTEGER NOT NULL REFERENCES episodes (id),
    call_id TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('proposed', 'evaluating', 'done')),
    status TEXT,
    as_score REAL,
    note TEXT NOT NULL,
    candidate_key TEXT NOT NULL,
    repeat_of INTEGER REFERENCES nodes (id),
    evaluation_id INTEGER REFERENCES evaluations (id),
    diagnosis TEXT,
    created_at TEXT NOT NULL,
    evaluated_at TEXT,
    number INTEGER NOT NULL,
    place INTEGER,
    canonical_key TEXT,
    profiles TEXT,
    UNIQUE (episode_id, call_id)
);
CREATE INDEX nodes_of_run ON nodes (run_id, id);
CREATE INDEX nodes_open ON nodes (run_id) WHERE state != 'done';
CREATE INDEX nodes_best ON nodes (run_id, island, as_score DESC, number, place)
    WHERE status = 'ok' AND repeat_of IS NULL;
CREATE INDEX nodes_by_canonical ON nodes (substr(canonical_key, 1, 16), run_id);

CREATE TABLE evaluations (
    id INTEGER PRIMARY KEY,
    candidate_key TEXT NOT NULL,
    status TEXT NOT NULL,
    as_score REAL,
    seconds REAL NOT NULL,
    result BLOB NOT NULL,
    samples BLOB,
    plans TEXT,
    created_at TEXT NOT NULL,
    conditions_id INTEGER NOT NULL REFERENCES conditions (id)
);
CREATE INDEX evaluations_by_candidate ON evaluations (substr(candidate_key, 1, 16));

CREATE TABLE conditions (
    id INTEGER PRIMARY KEY,
    task_key TEXT NOT NULL,
    evaluator_version TEXT NOT NULL,
    environment TEXT NOT NULL
);
CREATE INDEX conditions_by_task ON conditions (task_key);

CREATE TABLE files (
    key TEXT PRIMARY KEY,
    content BLOB NOT NULL
);

CREATE TABLE confirmations (
    run_id TEXT NOT NULL REFERENCES runs (id),
    series INTEGER NOT NULL,
    round INTEGER NOT NULL,
    node_id INTEGER NOT NULL REFERENCES nodes (id),
    evaluation_id INTEGER NOT NULL REFERENCES evaluations (id),
    PRIMARY KEY (run_id, series, round, node_id)
) WITHOUT ROWID;

CREATE VIEW hint_uses AS
    SELECT episodes.id AS episode_id, run_id, key + 1 AS place, value AS hint_id, 1 AS is_shown
    FROM episodes, json_each(hints)
    UNION ALL
    SELECT episodes.id AS episode_id, run_id, key + 1 AS place, value AS hint_id, 0 AS is_shown
    FROM episodes, json_each(held_out);

CREATE TABLE distilled_hints (
    episode_id INTEGER PRIMARY KEY REFERENCES episodes (id),
    run_id TEXT NOT NULL REFERENCES runs (id),
    state TEXT NOT NULL CHECK (state IN ('wanted', 'none', 'written')),
    hint_id TEXT UNIQUE,
    hint TEXT,
    node_id INTEGER REFERENCES nodes (id),
    author TEXT,
    task_hashes TEXT,
    written_at TEXT,
    CHECK ((state = 'written') = (hint IS NOT NULL AND hint_id IS NOT NULL))
);
CREATE INDEX distilled_hints_wanted ON distilled_hints (run_id) WHERE state = 'wanted';
