/**
 * `npm run bench`: runs the benchmarks, each in its own process. Benchmarks print ratios and do not
 * judge them: numbers of different machines cannot be compared.
 */
import { InvalidArgumentError, parseIntegerBetween } from '../lib/platform/cli.ts';
import { runLongPrograms } from './support/long-programs.ts';
import { RANKING_MODELS } from './support/ranking-models.ts';
import { CURVE_NAMES } from './support/scale-curves.ts';

const COUNT_MAX = 100_000;
const ROWS_MAX = 100_000_000;

const ROLLOUT_OPTIONS = [
  {
    flags: '--rollouts <n>',
    description: 'Rollouts and rollbacks at full speed (default: 50)',
    parse: parseIntegerBetween(1, COUNT_MAX),
  },
  {
    flags: '--rounds <n>',
    description: 'Rounds of open loops without and with rollouts (default: 5)',
    parse: parseIntegerBetween(1, COUNT_MAX),
  },
  {
    flags: '--rows <n>',
    description: 'Rows of the table (default: 1000000)',
    parse: parseIntegerBetween(1, ROWS_MAX),
  },
];

const OVERLOAD_OPTIONS = [
  {
    flags: '--request-rows <n>',
    description: 'Rows of a request: 500 or 1 (default: both)',
    parse: parseIntegerBetween(1, COUNT_MAX),
  },
  {
    flags: '--load <n>',
    description:
      'Only this load, as a multiple of the capacity, and no bare servers (default: all)',
    parse: parseIntegerBetween(1, COUNT_MAX),
  },
];

function collectCurves(name: string, previous: unknown): string[] {
  if (!CURVE_NAMES.includes(name)) {
    throw new InvalidArgumentError(`Expected one of ${CURVE_NAMES.join(', ')}.`);
  }
  return [...(Array.isArray(previous) ? previous : []), name];
}

const SCALE_OPTIONS = [
  {
    flags: '--curve <name>',
    description: `Only this curve; repeatable: ${CURVE_NAMES.join(', ')} (default: all)`,
    parse: collectCurves,
  },
  {
    flags: '--rows-max <n>',
    description:
      'Rows of the largest table; 100000000 needs 11 GiB and 3 min more (default: 10000000)',
    parse: parseIntegerBetween(1_000_000, ROWS_MAX),
  },
  {
    flags: '--output <folder>',
    description: 'Folder for charts as SVG (default: none)',
    parse: (folder: string) => folder,
  },
];

const GRAPH_NAMES = Object.keys(RANKING_MODELS);
const CANDIDATE_PROTOCOLS = ['kserve', 'json'];

function parseGraph(name: string): string {
  if (GRAPH_NAMES.includes(name)) return name;
  throw new InvalidArgumentError(`Expected one of ${GRAPH_NAMES.join(', ')}.`);
}

function parseProtocol(name: string): string {
  if (CANDIDATE_PROTOCOLS.includes(name)) return name;
  throw new InvalidArgumentError(`Expected ${CANDIDATE_PROTOCOLS.join(' or ')}.`);
}

process.exitCode = await runLongPrograms({
  name: 'bench',
  description:
    'Runs benchmarks and prints their results. An interrupted run leaves no process and no folder.',
  folder: import.meta.dirname,
  programs: {
    codecs: {
      script: 'codecs.bench.js',
      summary: 'Own codecs and hashes against packages',
      minutes: 1,
    },
    console: {
      script: 'console.bench.js',
      summary: 'CPU time of open pages of the console, idle and per request',
      minutes: 2,
    },
    'fair-share': {
      script: 'fair-share.bench.js',
      summary: 'The latency of a key while another one sends ten times its share',
      minutes: 2,
    },
    shadow: {
      script: 'shadow.bench.js',
      summary: 'Latency and CPU time of requests that are copied, also to a process that hangs',
      minutes: 2,
    },
    tls: {
      script: 'tls.bench.js',
      summary: 'TLS and API keys against requests in clear: CPU time of serving',
      minutes: 1,
    },
    'cube-builder': {
      script: 'cube-builder.bench.js',
      summary: 'Builds in memory and by sorting on disk',
      minutes: 1,
    },
    'hot-rows': {
      script: 'hot-rows.bench.js',
      summary: 'Hit rate of the row cache against LRU, time and memory of a hit',
      minutes: 1,
    },
    'lookup-kernel': {
      script: 'lookup-kernel.bench.js',
      summary: 'Time per key in a resident table against Map and C',
      minutes: 2,
    },
    'loopback-lookup': {
      script: 'loopback-lookup.bench.js',
      summary: 'Lookups of cube-server over loopback against Redis MGET',
      minutes: 2,
    },
    'large-table': {
      script: 'large-table.bench.js',
      summary: 'Lookups in a table of 100 M rows against one of 10 M; needs 12 GiB',
      minutes: 5,
      options: [
        {
          flags: '--table-rows <n>',
          description: 'Rows of the large table (default: 100000000)',
          parse: parseIntegerBetween(1_000_000, ROWS_MAX),
        },
      ],
    },
    overload: {
      script: 'overload.bench.js',
      summary: 'Serving above its capacity: answers in time and the cost of refusals',
      minutes: 3,
      options: OVERLOAD_OPTIONS,
    },
    pipeline: {
      script: 'pipeline.bench.js',
      summary: 'Pipelines: the engine alone, a local predictor, models in parallel',
      minutes: 2,
    },
    'plain-model': {
      script: 'plain-model.bench.js',
      summary: 'A plain model in the engine against bare onnxruntime',
      minutes: 3,
    },
    precision: {
      script: 'precision.bench.js',
      summary: "The demo's graph with weights of 32, 16 and 8 bits",
      minutes: 1,
    },
    'replica-failures': {
      script: 'replica-failures.bench.js',
      summary: 'Failed lookups and latency while replicas hang or are killed',
      minutes: 1,
    },
    rollouts: {
      script: 'rollouts.bench.js',
      summary: 'Failed and mixed answers and latency during rollouts under load',
      minutes: 15,
      options: ROLLOUT_OPTIONS,
    },
    scale: {
      script: 'scale.bench.js',
      summary: 'Curves of lookups, loads and memory by rows, shards, tables, deltas and load',
      minutes: 4,
      options: SCALE_OPTIONS,
    },
    'sealed-load': {
      script: 'sealed-load.bench.js',
      summary: 'Loads of encrypted layers against clear ones',
      minutes: 1,
    },
    'load-tables': {
      script: 'load-tables.bench.js',
      summary: 'Throughput and latency by batch, concurrency, protocol, instances and processes',
      minutes: 5,
      options: [
        {
          flags: '--part <n>',
          description:
            'Part: 1 protocols, 2 batching, 3 warm-up, 4 instances and processes (default: all)',
          parse: parseIntegerBetween(1, 4),
        },
      ],
    },
    'serving-protocols': {
      script: 'serving-protocols.bench.js',
      summary: 'Each protocol of serving against the graph alone',
      minutes: 3,
    },
    'server-threads': {
      script: 'server-threads.bench.js',
      summary: 'Lookups of cube-server with two threads against one (Node 22.12)',
      minutes: 1,
    },
    serving: {
      script: 'serving.bench.js',
      summary: 'The engine of serving against the graph alone',
      minutes: 4,
    },
    'single-rows': {
      script: 'single-rows.bench.js',
      summary: 'Requests of one row through each protocol against bare servers: CPU time',
      minutes: 1,
    },
    start: {
      script: 'start.bench.js',
      summary: 'CPU time until servers listen, and time until a killed fleet predicts again',
      minutes: 1,
    },
    stores: {
      script: 'stores.bench.js',
      summary: 'The stores of serving against each other',
      minutes: 1,
    },
    'ten-shards': {
      script: 'ten-shards.bench.js',
      summary: "Ten shards at a hundred batches per second, as on Cube's performance page",
      minutes: 1,
    },
    'user-split': {
      script: 'user-split.bench.js',
      summary: 'A user with 40 candidates: its features sent once, its side of the graph run once',
      minutes: 3,
      options: [
        {
          flags: '--graph <name>',
          description: `Only this graph: ${GRAPH_NAMES.join(', ')} (default: all)`,
          parse: parseGraph,
        },
        {
          flags: '--protocol <name>',
          description: 'kserve (binary strings) or json (CTR) (default: kserve)',
          parse: parseProtocol,
        },
      ],
    },
    'version-switch': {
      script: 'version-switch.bench.js',
      summary: 'Latency of lookups while versions are loaded',
      minutes: 11,
    },
  },
});
