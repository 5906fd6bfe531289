/**
 * A cluster of real processes on loopback with the demo model: repository, shard servers, one agent
 * and serving. The system chooses ports; a killed server can be restarted on its old port.
 */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { toArguments } from '../../../lib/platform/arguments.ts';
import {
  type ExpectedScores,
  scoreFull,
  scorePruned,
} from '../../../tools/demo/expected-scores.ts';
import { perturbTables } from '../../../tools/demo/perturb-tables.ts';
import { Processes, type ServerProcess } from '../../../tools/demo/processes.ts';

const root = join(import.meta.dirname, '..', '..', '..', '..');
const DEMO = join(root, 'data', 'demo');
const BUNDLE = 'ctr-dnn';

export interface Answer {
  readonly status: number;
  readonly version?: string;
  readonly tables_version?: string;
  readonly probabilities?: readonly number[];
  readonly unseen?: number;
  readonly unavailable?: number;
  readonly degraded?: boolean;
  readonly error?: string;
}

export class Cluster {
  readonly folder: string = mkdtempSync(join(tmpdir(), 'hypercube-cluster-'));
  readonly processes: Processes;
  readonly lines: readonly string[];
  /** The expected score of every demo row, by version. */
  readonly reference: Record<string, ExpectedScores> = {};
  readonly #shardMaps = new Map<number, ServerProcess[]>();
  endpoint = '';

  private constructor(lines: readonly string[]) {
    this.lines = lines;
    mkdirSync(join(this.folder, 'logs'));
    this.processes = new Processes(join(this.folder, 'logs'));
  }

  static async create(): Promise<Cluster> {
    const rows = readFileSync(join(DEMO, 'rows.tsv'), 'utf8').trimEnd().split('\n');
    const cluster = new Cluster(rows);
    await cluster.run(
      'tools/prune-model/main.js',
      toArguments({
        model: join(DEMO, 'model.onnx'),
        features: join(DEMO, 'features.json'),
        output: cluster.path('pruned'),
      }),
    );
    return cluster;
  }

  get #channel(): { repository: string; bundle: string; channel: string } {
    return { repository: this.path('repository'), bundle: BUNDLE, channel: 'stable' };
  }

  path(name: string): string {
    return join(this.folder, name);
  }

  run(script: string, args: readonly string[]): Promise<{ stdout: string; stderr: string }> {
    return this.processes.run(script, args);
  }

  /** Publishes a version; `perturbation` 0 is the trained model itself. */
  async publish(version: string, shardNum: number, perturbation: number): Promise<void> {
    let input = this.path('pruned');
    const rows = join(DEMO, 'rows.tsv');
    if (perturbation === 0) {
      const features = join(DEMO, 'features.json');
      this.reference[version] = await scoreFull(join(DEMO, 'model.onnx'), features, rows);
    } else {
      input = perturbTables(input, this.path(`pruned-${version}`), perturbation);
      this.reference[version] = await scorePruned(input, rows);
    }
    await this.run(
      'tools/cube-builder/main.js',
      toArguments({
        input,
        outputPath: this.path('repository'),
        bundle: BUNDLE,
        shardNum,
        curVersion: version,
      }),
    );
  }

  agent(command: string, ...args: string[]): Promise<{ stdout: string; stderr: string }> {
    return this.run('cube-agent/main.js', [command, ...toArguments(this.#channel), ...args]);
  }

  async startShards(shardNum: number): Promise<ServerProcess[]> {
    const servers = await Promise.all(
      Array.from({ length: shardNum }, (_, shard) => this.startShard(shard, shardNum, 0)),
    );
    this.#shardMaps.set(shardNum, servers);
    this.writeFleet();
    return servers;
  }

  startShard(shard: number, shardNum: number, port: number): Promise<ServerProcess> {
    return this.processes.start(
      `shard-${shard}-of-${shardNum}`,
      'cube-server/main.js',
      toArguments({ shard, shardNum, port, dataDir: this.path('host') }),
    );
  }

  writeFleet(): void {
    const maps = [...this.#shardMaps].map(([shardNum, servers]) => ({
      shardNum,
      shards: servers.map(({ address }) => [{ data: address }]),
    }));
    writeFileSync(
      this.path('fleet.json'),
      JSON.stringify({ format: 1, bundles: { [BUNDLE]: maps } }),
    );
  }

  async startAgent(): Promise<ServerProcess> {
    const servers = [...this.#shardMaps.values()].flat();
    return this.processes.start('agent', 'cube-agent/main.js', [
      'run',
      ...toArguments({
        ...this.#channel,
        dataDir: this.path('host'),
        pollMs: 100,
        server: servers.map((server) => server.address),
      }),
    ]);
  }

  async startServing(...args: string[]): Promise<ServerProcess> {
    const server = await this.processes.start('serving', 'serving/main.js', [
      ...toArguments({
        ...this.#channel,
        port: 0,
        pollMs: 100,
        timeoutMs: 30_000,
      }),
      ...args,
    ]);
    this.endpoint = `http://${server.address}`;
    await waitUntil(
      async () => (await fetch(`${this.endpoint}/v2/health/ready`)).ok,
      'serving is ready',
    );
    return server;
  }

  /** Sends demo rows [from, from + count). */
  async predict(from: number, count: number): Promise<Answer> {
    const response = await fetch(`${this.endpoint}/v1/ctr:predict`, {
      method: 'POST',
      headers: { 'content-type': 'text/tab-separated-values' },
      body: this.lines.slice(from, from + count).join('\n'),
    });
    return { status: response.status, ...((await response.json()) as object) };
  }

  /** The largest difference between the scores of a response and those expected of its version. */
  difference(answer: Answer, from: number): number {
    const expected = this.reference[answer.version ?? ''];
    const scores = answer.probabilities ?? [];
    if (scores.length === 0) return Number.NaN;
    return Math.max(...scores.map((p, i) => Math.abs(p - (expected?.[from + i] ?? Number.NaN))));
  }

  async destroy(): Promise<void> {
    await this.processes.stopAll();
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** Polls until `condition` holds; a thrown error counts as false. */
export async function waitUntil(
  condition: () => Promise<boolean> | boolean,
  what: string,
): Promise<void> {
  let last: unknown;
  for (let attempt = 0; attempt < 1_200; attempt++) {
    try {
      if (await condition()) return;
    } catch (error) {
      last = error;
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`not within a minute: ${what}${last === undefined ? '' : ` (${String(last)})`}`);
}
