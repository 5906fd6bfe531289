/**
 * A whole cluster of real processes on loopback, made from the demo model: repository, shard servers, one agent and
 * serving. Ports are chosen by the system; a server can be killed and started again where it was.
 */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Processes, type Server } from '../../tools/demo/processes.ts';
import { type Scores, scoreFull, scorePruned } from '../../tools/demo/reference.ts';
import { perturbTables } from '../../tools/demo/second-version.ts';

const root = join(import.meta.dirname, '..', '..', '..');
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
  /** Per version the expected score of every demo row. */
  readonly reference: Record<string, Scores> = {};
  readonly #shardMaps = new Map<number, Server[]>();
  endpoint = '';

  private constructor(lines: readonly string[]) {
    this.lines = lines;
    mkdirSync(join(this.folder, 'logs'));
    this.processes = new Processes(join(this.folder, 'logs'));
  }

  static async create(): Promise<Cluster> {
    const rows = readFileSync(join(DEMO, 'rows.tsv'), 'utf8').trimEnd().split('\n');
    const cluster = new Cluster(rows);
    await cluster.run('tools/prune-model/main.js', [
      ...['--model', join(DEMO, 'model.onnx'), '--features', join(DEMO, 'features.json')],
      ...['--output', cluster.path('pruned')],
    ]);
    return cluster;
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
    await this.run('tools/cube-builder/main.js', [
      ...['--input', input, '--output-path', this.path('repository'), '--bundle', BUNDLE],
      ...['--shard-num', String(shardNum), '--cur-version', version],
    ]);
  }

  agent(command: string, ...args: string[]): Promise<{ stdout: string; stderr: string }> {
    const repository = this.path('repository');
    return this.run('cube-agent/main.js', [
      ...[command, '--repository', repository, '--bundle', BUNDLE, '--channel', 'stable', ...args],
    ]);
  }

  async startShards(shardNum: number): Promise<Server[]> {
    const servers = await Promise.all(
      Array.from({ length: shardNum }, (_, shard) => this.startShard(shard, shardNum, 0)),
    );
    this.#shardMaps.set(shardNum, servers);
    this.writeFleet();
    return servers;
  }

  startShard(shard: number, shardNum: number, port: number): Promise<Server> {
    return this.processes.start(`shard-${shard}-of-${shardNum}`, 'cube-server/main.js', [
      ...['--shard', String(shard), '--shard-num', String(shardNum), '--port', String(port)],
      ...['--data-dir', this.path('host')],
    ]);
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

  async startAgent(): Promise<Server> {
    const servers = [...this.#shardMaps.values()].flat();
    return this.processes.start('agent', 'cube-agent/main.js', [
      ...['run', '--repository', this.path('repository'), '--bundle', BUNDLE],
      ...['--channel', 'stable', '--data-dir', this.path('host'), '--poll-ms', '100'],
      ...servers.flatMap((server) => ['--server', server.address]),
    ]);
  }

  async startServing(...args: string[]): Promise<Server> {
    const server = await this.processes.start('serving', 'serving/main.js', [
      ...['--repository', this.path('repository'), '--bundle', BUNDLE, '--channel', 'stable'],
      ...['--port', '0', '--poll-ms', '100', '--timeout-ms', '30000', ...args],
    ]);
    this.endpoint = `http://${server.address}`;
    await eventually(
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

  /** The largest difference between an answer's scores and those its version must give. */
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

/** Polls until `condition` holds; a thrown error counts as not yet. */
export async function eventually(
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
