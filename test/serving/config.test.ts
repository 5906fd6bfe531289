/** Configuration files, flags and variables: the schema, the precedence and the errors. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Ajv } from 'ajv';
import fc from 'fast-check';
import { parse, stringify } from 'yaml';
import { CubeError } from '../../lib/core/errors.ts';
import { completeConfig } from '../../serving/config/serving-config.ts';
import { MODEL_SETTINGS, PROCESS_SETTINGS, toKebabCase } from '../../serving/config/settings.ts';
import { parseSettings } from '../../serving/config/settings-file.ts';
import { mergeSettings } from '../../serving/config/settings-flags.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';

const MAIN = fileURLToPath(new URL('../../serving/main.js', import.meta.url));

/** Valid and invalid values of each kind, by placeholder. */
const VALUES: Readonly<Record<string, readonly [good: unknown[], bad: unknown[]]>> = {
  number: [
    [1, 16],
    [-1, 1.5, 'many', true, [1], 1e12],
  ],
  ms: [
    [10, 600_000],
    [-1, 0.5, 'soon'],
  ],
  us: [
    [0, 500],
    [-1, 'x'],
  ],
  rows: [
    [1, 64],
    [0, -5, 'x'],
  ],
  share: [
    [0, 0.5, 1],
    [-0.1, 1.01, 'half'],
  ],
  bytes: [
    [0, 4096, '64MiB', '1.5GB'],
    ['a lot', -1, [], 1.5],
  ],
  text: [
    ['a', 'x/y', 7],
    ['', [], {}, true],
  ],
  name: [
    ['ctr-dnn', '_', 5],
    ['a/b', '', '-x', {}],
  ],
  'true|false': [
    [true, false],
    ['yes', 1],
  ],
  'ms|p95|never': [
    [1, 50, 'p95', 'never'],
    [0, 1.5, 'p99', [], true],
  ],
  'data:rows*count': [
    ['zeros:1', 'random:64*10', 'random:4096*999'],
    ['random', 'ones:1', 'random:0', 'random:4097', 'zeros:1*0', 'zeros:1*1000', 1],
  ],
  'none|scope': [
    ['predict', 'metrics', 'predict:ctr-dnn', 'control:stage'],
    ['none of them', 'predict:', 'control:other', 'tables:x', 1, {}],
  ],
  address: [
    ['10.0.0.0/8', '192.168.1.1', '2001:db8::/32'],
    ['host', '', '10.0.0.0/x', 7, {}],
  ],
  origin: [
    ['*', 'https://example.com', 'http://localhost:8080'],
    ['example.com', 'https://example.com/path', '', {}],
  ],
  'number|cpu*n': [
    [1, 256, 'cpu', 'cpu*2', 'cpu * 0.5'],
    [0, 257, 'gpu', 'cpu*', 1.5],
  ],
};

function getTestValues(placeholder: string): readonly [unknown[], unknown[]] {
  if (placeholder.endsWith(',…')) {
    const [good, bad] = getTestValues(placeholder.slice(0, -2));
    return [
      [...good, good, [good[0]]],
      [...bad.filter((value) => !Array.isArray(value)), [], bad],
    ];
  }
  return (
    (VALUES[placeholder] as [unknown[], unknown[]]) ?? [placeholder.split('|'), ['other', 3, []]]
  );
}

function createFields(table: object): Record<string, fc.Arbitrary<unknown>> {
  const entries = Object.entries(table).map(([key, { kind }]) => {
    const [good, bad] = getTestValues(kind.placeholder);
    const value = fc.oneof(
      { weight: 30, arbitrary: fc.constantFrom(...good) },
      { weight: 1, arbitrary: fc.constantFrom(...bad) },
    );
    return [toKebabCase(key), value] as const;
  });
  return Object.fromEntries(entries);
}

const model = fc.record(createFields(MODEL_SETTINGS), { requiredKeys: ['name'] });
const documents = fc.record(
  {
    ...createFields(PROCESS_SETTINGS),
    models: fc.array(model, { minLength: 0, maxLength: 2 }),
    services: fc.array(fc.record({ name: fc.constant('S'), model: fc.constantFrom('m', 'a/b') })),
    other: fc.constant(1),
  },
  { requiredKeys: [] },
);

function catchError(action: () => unknown): CubeError | undefined {
  try {
    action();
    return undefined;
  } catch (error) {
    assert.ok(error instanceof CubeError, String(error));
    return error;
  }
}

test('the reader and the JSON Schema accept the same files; errors name the line', () => {
  const schema = JSON.parse(readFileSync('docs/schemas/serving.schema.json', 'utf8'));
  const validate = new Ajv({ allErrors: true, allowUnionTypes: true }).compile(schema);
  fc.assert(
    fc.property(documents, (document) => {
      const text = stringify(document);
      const error = catchError(() => parseSettings(text, 'serving.yaml'));
      assert.equal(validate(parse(text)), error === undefined, `${error?.message}\n${text}`);
      if (error === undefined) return;
      assert.match(error.message, /^serving\.yaml:\d+:\d+: /);
      assert.equal(error.code, 'INVALID_ARGUMENT');
    }),
    { numRuns: 400 },
  );
});

test('any text is parsed or rejected with one error', () => {
  const hostile = fc.oneof(
    fc.string({ maxLength: 200 }),
    fc.constantFrom(
      'models: &a [*a]',
      `a: &a [x]\n${'b: [*a, *a]\n'.repeat(50)}`,
      '['.repeat(50_000),
      '{a: '.repeat(5_000),
      '- 1',
      'models: 3',
      'models:\n  - 3',
      'models: []',
      '%YAML 9.9\n---\nmodels: [',
      'port: 1\nport: 2\nmodels: [{name: a}]',
      '__proto__: {}\nmodels: [{name: a}]',
    ),
  );
  fc.assert(fc.property(hostile, (text) => void catchError(() => parseSettings(text, 'x.yaml'))));
});

test('an invalid configuration is rejected with a remedy', () => {
  const cases: [string, RegExp][] = [
    ['models: [{name: a}]', /model a: give --repository with --bundle, or --bundle-dir/],
    ['models: [{name: a, repository: r}]', /--repository needs --bundle/],
    [
      'models: [{name: a, repository: r, bundle: b, bundle-dir: d}]',
      /--repository: not allowed with --bundle-dir/,
    ],
    [
      'models: [{bundle: b, repository: r, channel: [c], pinned-version: 2}]',
      /--channel: not allowed with --pinned-version/,
    ],
    [
      'models: [{name: a, bundle-dir: d, pinned-version: 2}]',
      /--pinned-version: not allowed with --bundle-dir/,
    ],
    [
      'models: [{bundle: b, repository: r, fleet: f}]',
      /model b: --fleet: not allowed with --store memory/,
    ],
    ['models: [{name: a, bundle-dir: d}, {name: a, bundle-dir: e}]', /two models are named a/],
    [
      'models: [{name: a, bundle-dir: d, record: r}, {name: b, bundle-dir: e, record: ./r}]',
      /two models record to \/etc\/r/,
    ],
    [
      'models: [{name: a, bundle-dir: d}]\nservices: [{name: S, model: a}, {name: S, model: a}]',
      /two services are named S/,
    ],
    ['models: [{name: a, bundle-dir: d, warm-up: file}]', /needs --warm-up-file/],
    [
      'models: [{name: a, bundle-dir: d, warm-up: golden, warm-up-entries: random:8}]',
      /--warm-up-entries: not allowed with --warm-up golden/,
    ],
    [
      'models: [{name: a, bundle-dir: d, warm-up-entries: [zeros:1, random]}]',
      /warm-up-entries\[1\]: expected zeros or random, a colon, an integer in 1\.\.4096/,
    ],
    [
      'models: [{name: a, bundle-dir: d, record-share: 1}]',
      /--record-share: only allowed with --record/,
    ],
    [
      'message-bytes: 1KiB\nmodels: [{name: a, bundle-dir: d}]',
      /message-bytes: expected 64KiB to 256MiB, got 1024 bytes/,
    ],
    ['models: [{name: a, bundle-dir: d, preferred-batches: 65}]', /65 is more than --max-batch 64/],
    [
      'models: [{name: a, bundle-dir: d}]\nservices: [{name: S, model: b}]',
      /service S: there is no model b \(models: a\)/,
    ],
  ];
  assertRejected(cases);
});

function assertRejected(cases: readonly [string, RegExp][]): void {
  for (const [text, message] of cases) {
    const error = catchError(() => completeConfig(parseSettings(text, '/etc/serving.yaml')));
    assert.match(error?.message ?? 'no error', message);
  }
}

test('models of a model repository have settings for recording and recorded warm-ups only', () => {
  assertRejected([
    [
      'model-repository: r\nmodels: [{name: a, max-batch: 3, record: f}]',
      /model a: --max-batch: not allowed for a model of --model-repository; its config\.pbtxt/,
    ],
    [
      'model-repository: r\nmodels: [{name: a, warm-up: golden}]',
      /model a: --warm-up: expected file; model_warmup in config\.pbtxt/,
    ],
    [
      'model-repository: r\nmodels: [{name: a, warm-up-timeout-ms: 3}]',
      /model a: --warm-up-timeout-ms: needs --warm-up-file/,
    ],
    [
      'model-repository: r\nmodels: [{name: a, record: f}, {name: b, record: f}]',
      /two models record to \/etc\/f/,
    ],
    [
      'model-repository: r\nmodels: [{name: a, record: f}, {name: a, bundle-dir: d}]',
      /two models are named a/,
    ],
  ]);
});

test('warm-up entries imply a synthetic warm-up', () => {
  const text = 'models: [{name: a, bundle-dir: d, warm-up-entries: [zeros:1, random:64*10]}]';
  const [only] = completeConfig(parseSettings(text, '/etc/serving.yaml')).models;
  assert.deepEqual(only?.warmUp, {
    kind: 'synthetic',
    timeoutMs: 30_000,
    entries: [
      { data: 'zeros', rows: 1, count: 1 },
      { data: 'random', rows: 64, count: 10 },
    ],
  });
});

test('flags record the requests of one model of a model repository', () => {
  const flags = { modelRepository: 'm', name: 'encoder', record: 'r', recordShare: 1 };
  const { models, modelRepository } = completeConfig(mergeSettings(undefined, flags));
  assert.deepEqual(models, []);
  assert.equal(modelRepository?.models[0]?.record?.share, 1);
  const unnamed = { modelRepository: 'm', record: 'r' };
  const error = catchError(() => completeConfig(mergeSettings(undefined, unnamed)));
  assert.match(error?.message ?? '', /settings of a model of --model-repository need --name/);
});

test('--check-config: flags override variables, and both override the file', (t) => {
  const folder = temporaryFolder(t);
  const path = join(folder, 'serving.yaml');
  writeFileSync(
    path,
    'port: 1\ntimeout-ms: 1\nmax-in-flight: 1\nmodels:\n' +
      '  - { bundle: ctr, repository: repo, store: redis, redis-url: "redis://u:secret@h:1" }\n',
  );
  const check = (flags: string[], env: Record<string, string> = {}) =>
    spawnSync(process.execPath, [MAIN, '--check-config', '--config', path, ...flags], {
      encoding: 'utf8',
      env: { ...process.env, ...env },
    });
  const variables = { HYPERCUBE_PORT: '2', HYPERCUBE_TIMEOUT_MS: '2', HYPERCUBE_INSTANCES: '3' };
  const { status, stdout } = check(['--port', '3'], variables);
  assert.equal(status, 0);
  const understood = parse(stdout);
  assert.deepEqual(
    [understood.port, understood.timeoutMs, understood.inFlightMax, understood.models[0].instances],
    [3, 2, 1, 3],
  );
  assert.equal(understood.models[0].source.repository, join(folder, 'repo'));
  assert.ok(!stdout.includes('secret'), stdout);
  writeFileSync(path, 'models:\n  - { name: a, bundle-dir: d }\n  - { name: b, bundle-dir: e }\n');
  for (const [flags, message] of [
    [['--max-batch', '8'], /--max-batch: the configuration has 2 models/],
    [['--max-batch', '-1'], /expected an integer in 0\.\.4096, got "-1"/],
  ] as const) {
    const refused = check([...flags]);
    assert.match(refused.stderr, message);
    assert.equal(refused.status, 2);
  }
});

test('docs/serving.md lists every setting with its help, and its example is valid', () => {
  const page = readFileSync('docs/serving.md', 'utf8');
  for (const [key, { kind, help }] of Object.entries({ ...PROCESS_SETTINGS, ...MODEL_SETTINGS })) {
    const line = page.split('\n').find((text) => text.startsWith(`| \`${toKebabCase(key)}\` |`));
    const [value, text] = [kind.placeholder, help].map((cell) => cell.replaceAll('|', '\\|'));
    assert.ok(line?.includes(`| ${text}`), key);
    if (value?.includes('|')) assert.ok(line?.includes(`| ${value} |`), `the values of ${key}`);
  }
  const example = /```yaml\n([\s\S]*?)```/.exec(page)![1]!;
  const { models } = completeConfig(parseSettings(example, '/etc/serving.yaml'));
  assert.deepEqual(
    models.map(({ name }) => name),
    ['ctr-dnn', 'small'],
  );
});
