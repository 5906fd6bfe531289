/**
 * The main job, top to bottom: a trained model becomes a pruned graph and sharded tables, the tables are served,
 * rows are predicted through them, and the result is held against the unpruned model.
 */
import { once } from 'node:events';
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { formatFleet } from '../../lib/core/fleet.ts';
import { readText, replaceFile } from '../../lib/platform/files.ts';
import type { Processes } from './processes.ts';
import { readPredictions, type Scores, scoreFull, scorePruned } from './reference.ts';
import { perturbTables } from './second-version.ts';
import { bold, Steps, say, table } from './steps.ts';
import { Traffic, type TrafficReport } from './traffic.ts';

const BUNDLE = 'ctr-dnn';
const SHARD_NUM = 4;
const DIFFERENCE_MAX = 1e-5;
const ROWS_PER_REQUEST = 64;
const CONCURRENCY = 8;

export interface DemoOptions {
  readonly folder: string;
  /** Where model.onnx, features.json and rows.tsv are. */
  readonly demo: string;
  readonly local: boolean;
  readonly once: boolean;
  readonly port: number;
}

interface ClientReport {
  readonly rowsPerSecond: number;
  readonly requestsPerSecond: number;
  readonly latencyMs: { readonly p50: number; readonly p99: number };
  readonly auc: number | null;
  readonly logloss: number | null;
  readonly versions: Readonly<Record<string, unknown>>;
}

/**
 * @param stop aborted when the user wants to stop; until then the demo keeps serving (unless `once`)
 * @throws Error soon after an abort that comes before the report
 */
export async function runMainJob(
  options: DemoOptions,
  processes: Processes,
  stop: AbortSignal,
): Promise<void> {
  const job = new MainJob(options, processes, stop);
  await job.buildVersions();
  const endpoint = await job.startServing();
  await job.predict(endpoint);
  const traffic = await job.rollOutAndBack(endpoint);
  job.report(traffic);
  if (options.once) return;
  job.sayWhatToTry(endpoint);
  if (!stop.aborted) await once(stop, 'abort');
}

class MainJob {
  readonly #options: DemoOptions;
  readonly #processes: Processes;
  readonly #stop: AbortSignal;
  readonly #steps: Steps;
  readonly #rows: string;
  readonly #repository: string;
  #reference: Record<string, Scores> = {};
  #client: ClientReport | undefined;
  #difference = Number.NaN;

  constructor(options: DemoOptions, processes: Processes, stop: AbortSignal) {
    this.#options = options;
    this.#processes = processes;
    this.#stop = stop;
    this.#steps = new Steps(options.local ? 6 : 8);
    this.#rows = join(options.demo, 'rows.tsv');
    this.#repository = this.#path('repository');
  }

  /** Model → pruned graph + table → version 1, and a perturbed version 2; only version 1 is activated. */
  async buildVersions(): Promise<void> {
    const { demo } = this.#options;
    const model = join(demo, 'model.onnx');
    const features = join(demo, 'features.json');
    const pruned = this.#path('pruned');
    await this.#steps.run(
      'Prune the model',
      () =>
        this.#json('tools/prune-model/main.js', [
          ...['--model', model, '--features', features, '--output', pruned, '--json'],
        ]),
      describePruning,
    );
    await this.#steps.run(
      `Build ${SHARD_NUM} shards and publish version 1`,
      () => this.#publish('pruned', '1'),
      () => `${BUNDLE} 1 in ${this.#repository}`,
    );
    await this.#steps.run(
      'Publish versions 2 and 3 with other tables, for later',
      async () => {
        for (const version of ['2', '3']) {
          const folder = perturbTables(pruned, this.#path(`pruned-${version}`), Number(version));
          await this.#publish(`pruned-${version}`, version);
          this.#reference[version] = await scorePruned(folder, this.#rows);
        }
        this.#reference['1'] = await scoreFull(model, features, this.#rows);
      },
      () => 'the graph is the same, the layers are new',
    );
    await this.#agent('activate', '--version', '1', '--reason', 'first');
  }

  /** @returns the endpoint of a serving process that is ready */
  async startServing(): Promise<string> {
    const store = this.#options.local
      ? ['--store', 'local', '--data-dir', this.#path('local')]
      : ['--store', 'remote', '--fleet', this.#path('fleet.json')];
    if (!this.#options.local) await this.#startShards();
    const server = await this.#steps.run(
      this.#options.local ? 'Start serving on the embedded store' : 'Start serving',
      async () => {
        const started = await this.#processes.start('serving', 'serving/main.js', [
          ...['--repository', this.#repository, '--bundle', BUNDLE, '--channel', 'stable'],
          ...[...store, '--port', String(this.#options.port), '--poll-ms', '200'],
          // On a machine that is busy a request that waits has not failed.
          ...['--timeout-ms', '30000'],
        ]);
        await untilReady(`http://${started.address}/v2/health/ready`, 'serving', this.#stop);
        return started;
      },
      (started) => `ready at http://${started.address}`,
    );
    return `http://${server.address}`;
  }

  async #startShards(): Promise<void> {
    const data = this.#path('host');
    const servers = await this.#steps.run(
      `Start ${SHARD_NUM} shard servers`,
      () =>
        Promise.all(
          Array.from({ length: SHARD_NUM }, (_, shard) =>
            this.#processes.start(`cube-server-${shard}`, 'cube-server/main.js', [
              ...['--shard', String(shard), '--shard-num', String(SHARD_NUM)],
              ...['--port', '0', '--data-dir', data],
            ]),
          ),
        ),
      (started) => started.map((server) => server.address).join(' '),
    );
    const replica = (address: string) => [{ data: address, control: address, group: 'default' }];
    const shards = servers.map((server) => replica(server.address));
    const fleet = { bundles: new Map([[BUNDLE, [{ shardNum: SHARD_NUM, shards }]]]) };
    replaceFile(this.#path('fleet.json'), formatFleet(fleet));
    await this.#steps.run(
      'Start the agent: fetch, verify, stage, activate',
      async () => {
        await this.#processes.start('cube-agent', 'cube-agent/main.js', [
          ...['run', '--repository', this.#repository, '--bundle', BUNDLE, '--channel', 'stable'],
          ...['--data-dir', data, '--poll-ms', '200'],
          ...servers.flatMap((server) => ['--server', server.address]),
        ]);
        for (const { address, name } of servers) {
          await untilReady(`http://${address}/readyz`, name, this.#stop);
        }
      },
      () => 'version 1 is active on every shard',
    );
  }

  /** Sends every demo row and holds the answers against the unpruned model. */
  async predict(endpoint: string): Promise<void> {
    const output = this.#path('predictions.tsv');
    await this.#steps.run(
      'Send the rows',
      async () => {
        this.#client = (await this.#json('tools/ctr-client/main.js', [
          ...['--rows', this.#rows, '--endpoint', endpoint],
          ...['--batch', String(ROWS_PER_REQUEST), '--concurrency', String(CONCURRENCY)],
          ...['--output', output, '--json'],
        ])) as ClientReport;
        const predictions = readPredictions(readText(output), output);
        this.#difference = largestDifference(predictions, this.#reference['1'] as Scores);
        if (!(this.#difference <= DIFFERENCE_MAX)) {
          throw new CubeError(
            'INTERNAL',
            `predictions differ from the unpruned model by ${this.#difference}, allowed ${DIFFERENCE_MAX}`,
          );
        }
        return predictions.length;
      },
      (rows) =>
        `${rows} rows, at most ${shownDifference(this.#difference)} from the unpruned model`,
    );
  }

  /** Version 2 out and back again while requests run; every answer is held against its version's own scores. */
  rollOutAndBack(endpoint: string): Promise<TrafficReport> {
    const traffic = new Traffic(endpoint, readText(this.#rows), this.#reference, this.#stop);
    const fleet = this.#options.local ? [] : ['--fleet', this.#path('fleet.json'), '--wait'];
    return this.#steps.run(
      'Roll version 2 out and back under traffic',
      async () => {
        traffic.start();
        let report: TrafficReport;
        try {
          await traffic.untilAnswered('1', 20);
          await this.#agent('activate', '--version', '2', '--reason', 'demo', ...fleet);
          await traffic.untilAnswered('2', 50);
          await this.#agent('rollback', '--reason', 'demo', ...fleet);
          await traffic.untilAnswered('1', 50);
        } finally {
          report = await traffic.stop();
        }
        if (report.failed + report.mixed > 0) {
          const text = `the rollout was not clean: ${describeTraffic(report)} ${report.firstFailure}`;
          throw new CubeError('INTERNAL', text.trimEnd());
        }
        return report;
      },
      describeTraffic,
    );
  }

  report(traffic: TrafficReport): void {
    const client = this.#client as ClientReport;
    const shown = (value: number | null): string =>
      value === null ? 'no labels' : value.toFixed(4);
    say();
    say(
      table([
        ['AUC', shown(client.auc)],
        ['logloss', shown(client.logloss)],
        [
          'throughput',
          `${Math.round(client.rowsPerSecond)} rows/s in requests of ${ROWS_PER_REQUEST} rows, ${CONCURRENCY} at a time`,
        ],
        [
          'latency',
          `p50 ${client.latencyMs.p50.toFixed(1)} ms, p99 ${client.latencyMs.p99.toFixed(1)} ms`,
        ],
        ['version', Object.keys(client.versions).join(', ')],
        ['largest difference', `${shownDifference(this.#difference)} from the unpruned model`],
        ['rollout', describeTraffic(traffic)],
      ]),
    );
    say();
  }

  sayWhatToTry(endpoint: string): void {
    const rows = quoted(this.#rows);
    const agent = `node dist/cube-agent/main.js`;
    const channel = `--repository ${quoted(this.#repository)} --bundle ${BUNDLE} --channel stable`;
    say(bold('It keeps serving. Try, in another terminal, in this folder:'));
    say(`
  # score three rows
  head -3 ${rows} | curl -s ${endpoint}/v1/ctr:predict -H 'Content-Type: text/tab-separated-values' --data-binary @-

  # what the model takes and gives (Open Inference Protocol v2)
  curl -s ${endpoint}/v2/models/${BUNDLE}

  # roll version 3 out, then back (a version rolled back from is quarantined: once is all): traffic goes on
  ${agent} activate ${channel} --version 3 --reason 'a try'
  ${agent} rollback ${channel} --reason 'enough'

  # send all rows again and measure
  node dist/tools/ctr-client/main.js --rows ${rows} --endpoint ${endpoint}

Ctrl-C stops everything.`);
  }

  #path(name: string): string {
    return join(this.#options.folder, name);
  }

  #publish(folder: string, version: string): Promise<unknown> {
    return this.#processes.run('tools/cube-builder/main.js', [
      ...['--input', this.#path(folder), '--output-path', this.#repository, '--bundle', BUNDLE],
      ...['--shard-num', String(SHARD_NUM), '--cur-version', version],
    ]);
  }

  #agent(command: string, ...args: string[]): Promise<unknown> {
    return this.#processes.run('cube-agent/main.js', [
      ...[command, '--repository', this.#repository, '--bundle', BUNDLE, '--channel', 'stable'],
      ...args,
    ]);
  }

  async #json(script: string, args: readonly string[]): Promise<unknown> {
    const { stdout } = await this.#processes.run(script, args);
    return JSON.parse(stdout) as unknown;
  }
}

function describePruning(report: unknown): string {
  const { bytes } = report as { bytes: { before: number; after: number } };
  const mb = (value: number): string => `${(value / 1e6).toFixed(1)} MB`;
  return `${mb(bytes.before)} → ${mb(bytes.after)}, proved equal on sampled inputs`;
}

/** A path as a shell takes it. */
function quoted(path: string): string {
  return /^[\w./-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`;
}

function shownDifference(difference: number): string {
  return difference === 0 ? '0' : difference.toExponential(1);
}

function describeTraffic(report: TrafficReport): string {
  const versions = Object.entries(report.versions)
    .map(([version, count]) => `${count} by version ${version}`)
    .join(', ');
  const { requests, failed, mixed } = report;
  return `${requests} requests (${versions}), ${failed} failed, ${mixed} mixed versions`;
}

function largestDifference(actual: Scores, expected: Scores): number {
  if (actual.length !== expected.length) return Number.NaN;
  let largest = 0;
  for (let i = 0; i < actual.length; i++) {
    const difference = Math.abs((actual[i] as number) - (expected[i] as number));
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

/** Polls a readiness URL. @throws CubeError NOT_READY with the server's own reason after a minute */
async function untilReady(url: string, name: string, stop: AbortSignal): Promise<void> {
  let reason = '';
  for (let attempt = 0; attempt < 600; attempt++) {
    stop.throwIfAborted();
    try {
      const response = await fetch(url, { signal: stop });
      if (response.ok) return;
      reason = await response.text();
    } catch (error) {
      reason = (error as Error).message;
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new CubeError('NOT_READY', `${name} is not ready: ${reason}`);
}
