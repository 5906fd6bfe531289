/**
 * The files that people write, from one table: in a valid example of each kind, a field is added to
 * every object, repeated, or given a value of another type, by program. Readers must name the field
 * and its place. Whatever they may accept is in the table.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { stringify } from 'yaml';
import { parsePolicy } from '../../cube-agent/gate/gate-limits.ts';
import { readGoldenText } from '../../cube-agent/gate/golden-rows.ts';
import { parseAgentConfig } from '../../cube-agent/host/agent-config.ts';
import { parseControllerConfig } from '../../cube-agent/rollout/rollout-config.ts';
import { readTrainedFeatures } from '../../lib/core/feature-spec.ts';
import { formatFleet, parseFleet } from '../../lib/core/fleet.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { readSlotSpec } from '../../lib/core/slots.ts';
import { listIgnoredCubeFields } from '../../serving/config/config-report.ts';
import { parseSettings } from '../../serving/config/settings-file.ts';
import { parseWarmUpRows } from '../../serving/engine/warm-up-rows.ts';
import { readBuildSpec } from '../../tools/cube-builder/build-spec.ts';
import { readGolden } from '../../tools/cube-builder/pruned-model.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';

type Path = readonly (string | number)[];
type Json = null | boolean | number | string | readonly Json[] | { readonly [name: string]: Json };

interface FileKind {
  readonly name: string;
  readonly form: 'json' | 'yaml';
  /** A valid file with every object that may be in it. */
  readonly example: Json;
  /** @throws CubeError that names the wrong field */
  readonly read: (text: string, path: string) => unknown;
  /** Objects whose keys are names that the author chooses. */
  readonly maps?: readonly string[];
}

const FEATURES = {
  hash: { scheme: 'xxh64-concat', seed: '1', modulo: '7' },
  slots: [
    { name: 'user', index: 1, modulo: '5', missing: 'none', side: 'user' },
    { name: 'tags', index: 2, pooling: 'sum', emptyBag: 'default' },
  ],
  separator: '|',
  dense: {
    input: 'dense',
    features: [{ name: 'age', input: 'ages', missing: 1, log: true, shift: 2, scale: 3 }],
  },
  click: { output: 'prob', column: 0 },
} as const;

const EMBEDDING = {
  input: 'e',
  table: 't',
  dim: 2,
  dtype: 'f32',
  shape: [-1, 2],
  slots: ['user'],
  ids: 'ids',
};

const COLUMN = { op: 'column', input: 'ids', column: 0 };

const parseJson = (text: string, path: string): JsonReader => JsonReader.parseFile(text, path);
const readSpec = (text: string): unknown => readTrainedFeatures(parseJson(text, 'f.json'));
const SPEC = readTrainedFeatures(
  JsonReader.of({ format: 1, ids: [{ input: 'i', slots: ['user'] }], ...FEATURES }, 'f.json'),
);
const ROW = { label: 1, user: 'u', tags: ['a'], age: 3 };

const FILES: readonly FileKind[] = [
  {
    name: 'features.json',
    form: 'json',
    example: {
      $comment: ['note'],
      format: 1,
      ...FEATURES,
      ids: [{ input: 'ids', slots: ['user'] }],
    },
    read: readSpec,
  },
  {
    name: 'slots.json',
    form: 'json',
    example: {
      format: 1,
      embeddings: [
        { ...EMBEDDING, columns: [0], paddingId: 0, lodLevel: 0 },
        { ...EMBEDDING, keys: [{ op: 'mod', dtype: 'int32', of: [COLUMN, COLUMN] }] },
        {
          ...EMBEDDING,
          bags: { pooling: 'sum', offsets: 'o', offsetsRow: 0, includesLast: true },
        },
      ],
      tables: [{ name: 't', rows: 5, dim: 2, dtype: 'f32', external: false, keyed: false }],
      ids: [{ input: 'ids', dtype: 'int64', columns: 1, slots: ['user'], kept: false }],
      maps: [{ name: 'm', int64: 'AQAAAAAAAAA=' }],
      graph: {
        inputs: [{ name: 'dense', dtype: 'float32', shape: [-1, 1] }],
        outputs: [{ name: 'prob', dtype: 'float32', shape: [-1, 1] }],
      },
      features: FEATURES,
    },
    read: (text, path) => readSlotSpec(parseJson(text, path)),
  },
  {
    name: 'fleet.json',
    form: 'json',
    example: {
      format: 1,
      bundles: {
        ctr: [
          {
            shardNum: 1,
            shards: [[{ data: 'a:1', control: 'a:2', group: 'g', agent: 'a:3', weight: 2 }]],
          },
        ],
      },
    },
    read: parseFleet,
    maps: ['bundles'],
  },
  {
    name: 'policy.json of the gate',
    form: 'json',
    example: { errorsMax: 0, psiMax: null, latencySlackMs: 5 },
    read: parsePolicy,
  },
  {
    name: 'golden.jsonl in cube-builder',
    form: 'json',
    example: { ...ROW, score: 0.5 },
    read: (text, path) => {
      writeFileSync(path, text);
      return readGolden(path, SPEC);
    },
  },
  {
    name: 'agent.yaml',
    form: 'yaml',
    example: {
      repository: 'models',
      'trusted-keys': 'keys',
      'data-dir': 'data',
      bundles: [{ name: 'ctr', channels: ['stable'] }],
      supervise: true,
      servers: [
        { shard: 0, 'shard-num': 4, host: '::', port: 80, 'admin-port': 90, flags: ['--x'] },
      ],
      listen: '127.0.0.1:8100',
      'token-file': 'token',
      'poll-ms': 500,
      parallel: 8,
      'rate-limit': '200MiB',
      'keep-versions': 5,
    },
    read: parseAgentConfig,
  },
  {
    name: 'controller.yaml',
    form: 'yaml',
    example: {
      repository: 'models',
      fleet: 'fleet.json',
      automatic: false,
      bundles: [
        {
          name: 'ctr',
          channels: [{ name: 'canary', 'hold-ms': 6 }, { name: 'stable' }],
          replicas: 2,
          gate: false,
          'gate-flags': ['--rows', '100'],
          serving: ['10.0.0.5:9000'],
          'watch-ms': 1,
          limits: { 'requests-min': 10, 'error-rate': 0.5 },
        },
      ],
    },
    read: parseControllerConfig,
  },
  {
    name: 'serving.yaml',
    form: 'yaml',
    example: {
      port: 8080,
      models: [{ bundle: 'ctr', repository: 'models', store: 'memory' }],
      services: [{ name: 'ads', model: 'ctr' }],
    },
    read: parseSettings,
  },
  {
    name: 'build spec',
    form: 'yaml',
    example: {
      bundle: 'b',
      'cur-version': 7,
      'shard-num': 2,
      'output-path': 'r',
      'expect-tolerance': 0.1,
      tables: [{ table: 't', input: 'rows.npy', dtype: 'f16', 'default-row': [0, 1] }],
    },
    read: (text, path) => {
      writeFileSync(path, text);
      return readBuildSpec(path, {}, (problem) => assert.fail(problem));
    },
  },
];

/** Every object or array of a document, and every value in it. */
function listPlaces(value: Json, path: Path = []): [Path, Json][] {
  if (typeof value !== 'object' || value === null) return [[path, value]];
  const inner = Object.entries(value).flatMap(([name, one]) =>
    listPlaces(one, [...path, Array.isArray(value) ? Number(name) : name]),
  );
  return [[path, value], ...inner];
}

function isObject(value: Json): value is { readonly [name: string]: Json } {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function change(document: Json, path: Path, to: (before: Json) => Json): Json {
  const [first, ...rest] = path;
  if (first === undefined) return to(document);
  const copy = structuredClone(document) as Record<string | number, Json>;
  copy[first] = change(copy[first] ?? null, rest, to);
  return copy as Json;
}

function format({ form }: FileKind, document: Json): string {
  return form === 'json' ? JSON.stringify(document) : stringify(document);
}

/** The text with one field of the object at `path` written twice. */
function repeatField(kind: FileKind, path: Path, name: string): string {
  const doubled = change(kind.example, path, (object) => {
    assert.ok(isObject(object));
    return { ...object, AGAIN: object[name] ?? null };
  });
  return format(kind, doubled).replace('AGAIN', name);
}

for (const kind of FILES) {
  test(`${kind.name}: no field is ignored`, (t) => {
    const path = join(temporaryFolder(t), 'file');
    const read = (document: Json): unknown => kind.read(format(kind, document), path);
    read(kind.example);
    const refuse = (text: string, expected: RegExp, what: string): void =>
      assert.throws(() => kind.read(text, path), expected, `${what}: ${text}`);
    for (const [place, value] of listPlaces(kind.example)) {
      const what = place.join('.');
      if (isObject(value)) {
        const [name] = Object.keys(value);
        if (!kind.maps?.includes(what)) {
          const add = (field: string): Json =>
            change(kind.example, place, (object) => ({ ...(object as object), [field]: 1 }));
          refuse(format(kind, add('zz-unknown')), /zz-unknown/, `unknown in ${what}`);
        }
        const again = repeatField(kind, place, name!);
        refuse(again, /twice|unique|duplicate/i, `repeated in ${what}`);
      }
      if (isObject(value) || value === null || place[0] === '$comment') continue;
      const wrong = change(kind.example, place, () => ({ wrong: true }));
      const leaf = place.findLast((step) => typeof step === 'string');
      refuse(format(kind, wrong), new RegExp(leaf ?? 'wrong'), `type of ${what}`);
    }
  });
}

test('a misspelled field is answered with the one that was probably meant', (t) => {
  const path = join(temporaryFolder(t), 'file');
  const cases: readonly [string, string, string][] = [
    ['features.json', '"scale"', '"sclae"'],
    ['features.json', '"side"', '"sid"'],
    ['slots.json', '"paddingId"', '"padingId"'],
    ['fleet.json', '"weight"', '"wieght"'],
    ['policy.json of the gate', '"psiMax"', '"psyMax"'],
    ['agent.yaml', 'poll-ms', 'poll'],
    ['controller.yaml', 'error-rate', 'eror-rate'],
    ['serving.yaml', 'store', 'stor'],
    ['build spec', 'dtype', 'dtyp'],
  ];
  for (const [name, right, wrong] of cases) {
    const kind = FILES.find((one) => one.name === name)!;
    const text = format(kind, kind.example).replace(right, wrong);
    const meant = right.replaceAll('"', '');
    assert.throws(
      () => kind.read(text, path),
      new RegExp(`unknown field ${JSON.stringify(wrong.replaceAll('"', ''))} .*mean "${meant}"`),
      text,
    );
  }
});

test('rows of warm-up and golden files: a repeated field is refused with its line', async () => {
  const text = '{"user": "a"}\n{"user": "a", "age": 1, "user": "b"}\n';
  const expected = /line 2: field user is there twice/;
  assert.throws(() => parseWarmUpRows(text, 'rows.jsonl', SPEC), expected);
  await assert.rejects(readGoldenText(text, 'golden.jsonl', { rowsMax: 9 }), expected);
});

test('cube.conf, a file of Cube: serving --check-config lists unknown fields', (t) => {
  const dict = { dict_name: 'd', shard: 1, nodes: [{ ip: 'h', port: 1, prot: 2 }], timout: 5 };
  const path = join(temporaryFolder(t), 'cube.conf');
  writeFileSync(path, JSON.stringify([dict]));
  const settings = listIgnoredCubeFields([{ store: { kind: 'remote', fleetPath: path } }]);
  assert.deepEqual(
    settings.map(({ setting }) => setting),
    [
      `${path}: [0]: unknown field "timout" (did you mean "timeout"?)`,
      `${path}: [0].nodes[0]: unknown field "prot" (did you mean "port"?)`,
    ],
  );
  writeFileSync(path, formatFleet({ bundles: new Map() }));
  assert.deepEqual(listIgnoredCubeFields([{ store: { kind: 'remote', fleetPath: path } }]), []);
});
