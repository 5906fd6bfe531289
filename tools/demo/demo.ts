/**
 * The demo, top to bottom: a trained model is pruned into a graph and sharded tables, the tables
 * are served, rows are predicted, and the predictions are compared with the unpruned model.
 */
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { formatFleet } from '../../lib/core/fleet.ts';
import { toArguments } from '../../lib/platform/arguments.ts';
import { readText, replaceFile } from '../../lib/platform/files.ts';
import { type ExpectedScores, readPredictions, scoreFull, scorePruned } from './expected-scores.ts';
import { sendGentleTraffic } from './gentle-traffic.ts';
import { type LoadReport, LoadRunner } from './load-runner.ts';
import { perturbTables } from './perturb-tables.ts';
import type { Processes, ServerProcess } from './processes.ts';
import { bold, formatTable, print, Steps } from './steps.ts';

const BUNDLE = 'ctr-dnn';
const SHARD_NUM = 4;
const DIFFERENCE_MAX = 1e-5;
const ROWS_PER_REQUEST = 64;
const CONCURRENCY = 8;
const GOLDEN_ROWS = 256;
const DENSE_FEATURES = 13;
/** How long a version is watched after its rollout. */
const WATCH_MS = 120_000;
/** Published with each version, as examples of the console. */
const EXAMPLE_ROWS = 16;

export interface DemoOptions {
  readonly folder: string;
  /** The folder stays when the demo ends. */
  readonly keepsFolder: boolean;
  /** The folder with model.onnx, features.json and rows.tsv. */
  readonly demo: string;
  readonly local: boolean;
  readonly once: boolean;
  readonly port: number;
  /** Rows per second that are sent while serving continues. */
  readonly traffic: number;
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
 * @param stop aborted when the user wants to stop; until then the demo keeps serving (unless
 *   `once`)
 * @throws Error soon after an abort that comes before the report
 */
export async function runDemo(
  options: DemoOptions,
  processes: Processes,
  stop: AbortSignal,
): Promise<void> {
  const job = new Demo(options, processes, stop);
  // These need no version, and the scores are compared later: they use the second processor.
  const shards = options.local ? undefined : keepFailure(job.startShards());
  const expected = keepFailure(job.scoreFull());
  try {
    await job.buildFirstVersion();
    const endpoint = await job.startServing(shards);
    await job.predict(endpoint, expected);
    await job.publishOtherVersions();
    await job.gateVersion();
    const load = await job.rollOutAndBack(endpoint);
    job.printReport(load);
    if (options.once) return;
    const console = await job.startConsole(endpoint);
    job.printNextSteps(endpoint, console);
    void sendGentleTraffic(endpoint, readText(job.rows), options.traffic, stop);
  } finally {
    await Promise.allSettled([shards, expected]);
  }
  if (!stop.aborted) await once(stop, 'abort');
}

/** For what is awaited later: until then a failure must not end the process. */
function keepFailure<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => undefined);
  return promise;
}

class Demo {
  readonly #options: DemoOptions;
  readonly #processes: Processes;
  readonly #stop: AbortSignal;
  readonly #steps: Steps;
  readonly rows: string;
  readonly #repository: string;
  readonly #model: string;
  readonly #features: string;
  readonly #startMs = performance.now();
  readonly #scores: Record<string, ExpectedScores> = {};
  #client: ClientReport | undefined;
  #difference = Number.NaN;

  constructor(options: DemoOptions, processes: Processes, stop: AbortSignal) {
    this.#options = options;
    this.#processes = processes;
    this.#stop = stop;
    this.#steps = new Steps(options.local ? 7 : 9);
    this.rows = join(options.demo, 'rows.tsv');
    this.#repository = this.#path('repository');
    this.#model = join(options.demo, 'model.onnx');
    this.#features = join(options.demo, 'features.json');
  }

  /** Prunes the model, publishes it as version 1 and activates it. */
  async buildFirstVersion(): Promise<void> {
    await this.#steps.run(
      'Prune the model',
      () =>
        this.#json(
          'tools/prune-model/main.js',
          toArguments({
            model: this.#model,
            features: this.#features,
            output: this.#path('pruned'),
            json: true,
          }),
        ),
      describePruning,
    );
    await this.#steps.run(
      `Build ${SHARD_NUM} shards and publish version 1`,
      async () => {
        await this.#publish('pruned', '1');
        await this.#agent('activate', '--version', '1', '--reason', 'first');
      },
      () => `published to ${this.#repository}`,
    );
  }

  /** Computes the scores that version 1 must have, with the unpruned model. */
  scoreFull(): Promise<ExpectedScores> {
    return scoreFull(this.#model, this.#features, this.rows);
  }

  /** Publishes two versions with perturbed tables, and computes their scores. */
  publishOtherVersions(): Promise<void> {
    return this.#steps.run(
      'Publish versions 2 and 3 for the rollout',
      async () => {
        for (const version of ['2', '3']) {
          const target = this.#path(`pruned-${version}`);
          const folder = perturbTables(this.#path('pruned'), target, Number(version));
          await this.#publish(`pruned-${version}`, version);
          this.#scores[version] = await scorePruned(folder, this.rows);
        }
      },
      () => 'same graph, different tables',
    );
  }

  /** Compares version 2 with version 1 on some of the rows, and keeps the report as a page. */
  gateVersion(): Promise<void> {
    const { keepsFolder, once } = this.#options;
    const html = this.#path('gate.html');
    const report =
      once && !keepsFolder ? 'to keep its report, add --dir <folder>' : `report: ${html}`;
    return this.#steps.run(
      'Run the gate on version 2',
      async () => {
        const golden = this.#path('golden.jsonl');
        replaceFile(golden, toGoldenRows(readText(this.rows), GOLDEN_ROWS));
        const options = { version: '2', golden, html, timeoutMs: 30_000 };
        const requests = { requests: 2 * GOLDEN_ROWS, rate: 500, rowsPerRequest: 1 };
        // All processes share this machine, so that latencies say little about a version.
        const limits = ['latencyP50RatioMax=none', 'latencyP99RatioMax=none'];
        const flags = limits.flatMap((limit) => ['--limit', limit]);
        await this.#agent('gate', ...toArguments({ ...options, ...requests }), ...flags);
      },
      () => `passed; ${report}`,
    );
  }

  /**
   * @param shards the servers of the shards; undefined with --local
   * @returns the URL of a serving process that is ready
   */
  async startServing(shards: Promise<readonly ServerProcess[]> | undefined): Promise<string> {
    const store = this.#options.local
      ? { store: 'local', dataDir: this.#path('local') }
      : { store: 'remote', fleet: this.#path('fleet.json') };
    if (shards !== undefined) await this.#startAgent(shards);
    const server = await this.#steps.run(
      this.#options.local ? 'Start serving with the local store' : 'Start serving',
      async () => {
        const started = await this.#processes.start(
          'serving',
          'serving/main.js',
          toArguments({
            ...this.#channel,
            ...store,
            port: this.#options.port,
            pollMs: 200,
            // A long timeout, so that requests do not fail on a busy machine.
            timeoutMs: 30_000,
          }),
        );
        await waitUntilReady(`http://${started.address}/v2/health/ready`, 'serving', this.#stop);
        return started;
      },
      (started) => `ready at http://${started.address}`,
    );
    return `http://${server.address}`;
  }

  startShards(): Promise<ServerProcess[]> {
    return Promise.all(
      Array.from({ length: SHARD_NUM }, (_, shard) =>
        this.#processes.start(
          `cube-server-${shard}`,
          'cube-server/main.js',
          toArguments({ shard, shardNum: SHARD_NUM, port: 0, dataDir: this.#path('host') }),
        ),
      ),
    );
  }

  async #startAgent(starting: Promise<readonly ServerProcess[]>): Promise<void> {
    const data = this.#path('host');
    const servers = await this.#steps.run(
      `Start ${SHARD_NUM} shard servers`,
      () => starting,
      (started) => started.map((server) => server.address).join(' '),
    );
    const replica = (address: string) => [{ data: address, control: address, group: 'default' }];
    const shards = servers.map((server) => replica(server.address));
    const fleet = { bundles: new Map([[BUNDLE, [{ shardNum: SHARD_NUM, shards }]]]) };
    replaceFile(this.#path('fleet.json'), formatFleet(fleet));
    await this.#steps.run(
      'Start the agent; it loads version 1 on all shards',
      async () => {
        await this.#processes.start('cube-agent', 'cube-agent/main.js', [
          'run',
          ...toArguments({
            ...this.#channel,
            dataDir: data,
            pollMs: 200,
            server: servers.map((server) => server.address),
          }),
        ]);
        for (const { address, name } of servers) {
          await waitUntilReady(`http://${address}/readyz`, name, this.#stop);
        }
      },
      () => 'version 1 is active on every shard',
    );
  }

  /** Predicts every demo row and compares the scores with the unpruned model. */
  async predict(endpoint: string, expected: Promise<ExpectedScores>): Promise<void> {
    const output = this.#path('predictions.tsv');
    await this.#steps.run(
      'Predict the demo rows',
      async () => {
        this.#client = (await this.#json(
          'tools/ctr-client/main.js',
          toArguments({
            rows: this.rows,
            endpoint,
            batch: ROWS_PER_REQUEST,
            concurrency: CONCURRENCY,
            output,
            json: true,
          }),
        )) as ClientReport;
        const predictions = readPredictions(readText(output), output);
        this.#scores['1'] = await expected;
        this.#difference = largestDifference(predictions, this.#scores['1']);
        if (!(this.#difference <= DIFFERENCE_MAX)) {
          throw new CubeError(
            'INTERNAL',
            `predictions differ from the unpruned model by ${this.#difference}; ` +
              `the limit is ${DIFFERENCE_MAX}`,
          );
        }
        return predictions.length;
      },
      (rows) =>
        `${rows} rows; largest difference from the unpruned model: ` +
        formatDifference(this.#difference),
    );
    const seconds = ((performance.now() - this.#startMs) / 1000).toFixed(1);
    print(`  predictions are live ${seconds} s after the first step began: ${endpoint}`);
  }

  /**
   * Rolls version 2 out and back under load. Every response is checked against the scores of its
   * version.
   */
  rollOutAndBack(endpoint: string): Promise<LoadReport> {
    const load = new LoadRunner(endpoint, readText(this.rows), this.#scores, this.#stop);
    const fleet = this.#options.local ? [] : ['--fleet', this.#path('fleet.json'), '--wait'];
    return this.#steps.run(
      'Roll out version 2 under load, then roll back',
      async () => {
        load.start();
        let report: LoadReport;
        try {
          await load.waitForVersion('1', 20);
          await this.#agent('activate', '--version', '2', '--reason', 'demo', ...fleet);
          await load.waitForVersion('2', 50);
          // Version 2 stays usable: it can be rolled out in the console.
          await this.#agent('rollback', '--reason', 'demo', '--no-quarantine', ...fleet);
          await load.waitForVersion('1', 50);
        } finally {
          report = await load.stop();
        }
        if (report.failed + report.mixed > 0) {
          const text = `the rollout failed: ${describeLoad(report)} ${report.firstFailure}`;
          throw new CubeError('INTERNAL', text.trimEnd());
        }
        return report;
      },
      describeLoad,
    );
  }

  printReport(load: LoadReport): void {
    const client = this.#client as ClientReport;
    const shown = (value: number | null): string =>
      value === null ? 'unknown (no labels)' : value.toFixed(4);
    print();
    print(
      formatTable([
        ['AUC', shown(client.auc)],
        ['logloss', shown(client.logloss)],
        [
          'throughput',
          `${Math.round(client.rowsPerSecond)} rows/s (${ROWS_PER_REQUEST} rows per request, ` +
            `${CONCURRENCY} concurrent requests)`,
        ],
        [
          'latency',
          `p50 ${client.latencyMs.p50.toFixed(1)} ms, p99 ${client.latencyMs.p99.toFixed(1)} ms`,
        ],
        ['version', Object.keys(client.versions).join(', ')],
        ['largest difference', `${formatDifference(this.#difference)} from the unpruned model`],
        ['rollout', describeLoad(load)],
      ]),
    );
    print();
  }

  /**
   * Starts a controller, whose console also shows the serving process.
   * @returns the URL of the console; with --local it is the one of serving
   */
  async startConsole(endpoint: string): Promise<string> {
    if (this.#options.local) return endpoint;
    const { host } = new URL(endpoint);
    const address = `127.0.0.1:${await findFreePort(Number(host.split(':')[1]) + 1)}`;
    // The servers share this machine, so that latencies say little about a version.
    const gateFlags = [
      `--golden=${this.#path('golden.jsonl')}`,
      `--requests=${2 * GOLDEN_ROWS}`,
      '--rate=500',
      '--timeout-ms=30000',
      '--rows-per-request=1',
      '--limit=latencyP50RatioMax=none',
      '--limit=latencyP99RatioMax=none',
    ];
    const bundle = { name: BUNDLE, 'gate-flags': gateFlags, serving: host, 'watch-ms': WATCH_MS };
    const config = {
      repository: this.#repository,
      fleet: this.#path('fleet.json'),
      automatic: false,
      listen: address,
      bundles: [bundle],
    };
    const file = this.#path('controller.yaml');
    // JSON is YAML.
    replaceFile(file, `${JSON.stringify(config, null, 2)}\n`);
    await this.#processes.start('controller', 'cube-agent/main.js', [
      'controller',
      ...toArguments({ config: file }),
    ]);
    return `http://${address}`;
  }

  printNextSteps(endpoint: string, console: string): void {
    const rows = quoteForShell(this.rows);
    const agent = `node dist/cube-agent/main.js`;
    const repository = quoteForShell(this.#repository);
    const channel = `--repository ${repository} --bundle ${BUNDLE} --channel stable`;
    print(bold('Serving continues. Try these commands in another terminal, in this folder:'));
    print(`
  # predict three rows
  head -3 ${rows} | curl -s ${endpoint}/v1/ctr:predict \\
    -H 'Content-Type: text/tab-separated-values' --data-binary @-

  # show the inputs and outputs of the model (Open Inference Protocol v2)
  curl -s ${endpoint}/v2/models/${BUNDLE}

  # roll out version 3, then roll back (the version is then quarantined; serving continues)
  ${agent} activate ${channel} --version 3 --reason 'try version 3'
  ${agent} rollback ${channel} --reason 'back to version 1'

  # predict all rows again and measure
  node dist/tools/ctr-client/main.js --rows ${rows} --endpoint ${endpoint}

Ctrl-C stops everything.`);
    if (!this.#options.local) print('Versions 2 and 3 wait to be rolled out by button.');
    print(bold(`Console: ${console}/`));
  }

  /** The options that name the demo's channel. */
  get #channel(): { repository: string; bundle: string; channel: string } {
    return { repository: this.#repository, bundle: BUNDLE, channel: 'stable' };
  }

  #path(name: string): string {
    return join(this.#options.folder, name);
  }

  #publish(folder: string, version: string): Promise<unknown> {
    const examples = this.#path('examples.jsonl');
    replaceFile(examples, toGoldenRows(readText(this.rows), EXAMPLE_ROWS));
    return this.#processes.run(
      'tools/cube-builder/main.js',
      toArguments({
        input: this.#path(folder),
        outputPath: this.#repository,
        bundle: BUNDLE,
        shardNum: SHARD_NUM,
        curVersion: version,
        golden: examples,
      }),
    );
  }

  #agent(command: string, ...args: string[]): Promise<unknown> {
    return this.#processes.run('cube-agent/main.js', [
      command,
      ...toArguments(this.#channel),
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
  return `${mb(bytes.before)} → ${mb(bytes.after)}, verified equal on sampled inputs`;
}

/** Converts rows of the demo (label, 13 numbers, features) to golden rows by position. */
function toGoldenRows(rows: string, count: number): string {
  const lines = rows.split('\n', count).map((line) => {
    const [label, ...columns] = line.split('\t');
    const dense = columns.slice(0, DENSE_FEATURES);
    return JSON.stringify({
      label: Number(label),
      dense: dense.map((text) => (text === '' ? null : Number(text))),
      categorical: columns.slice(DENSE_FEATURES),
    });
  });
  return `${lines.join('\n')}\n`;
}

/** Quotes a path for a shell. */
function quoteForShell(path: string): string {
  return /^[\w./-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`;
}

function formatDifference(difference: number): string {
  return difference === 0 ? '0' : difference.toExponential(1);
}

function describeLoad(report: LoadReport): string {
  const versions = Object.entries(report.versions)
    .map(([version, count]) => `${count} by version ${version}`)
    .join(', ');
  const { requests, failed, mixed } = report;
  return `${requests} requests (${versions}), ${failed} failed, ${mixed} with mixed versions`;
}

function largestDifference(actual: ExpectedScores, expected: ExpectedScores): number {
  if (actual.length !== expected.length) return Number.NaN;
  let largest = 0;
  for (let i = 0; i < actual.length; i++) {
    const difference = Math.abs((actual[i] as number) - (expected[i] as number));
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

/**
 * Polls a readiness URL. @throws CubeError NOT_READY with the server's own reason after a minute
 */
async function waitUntilReady(url: string, name: string, stop: AbortSignal): Promise<void> {
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

/** @param preferred used if it is free */
async function findFreePort(preferred: number): Promise<number> {
  for (const port of [preferred, 0]) {
    const server = createServer();
    try {
      server.listen(port, '127.0.0.1');
      await once(server, 'listening');
      const { port: free } = server.address() as AddressInfo;
      server.close();
      return free;
    } catch {
      // It is in use: the system chooses one.
    }
  }
  throw new CubeError('IO', 'no port is free for the console');
}
