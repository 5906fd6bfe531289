/** Loads that run in idle time, and their hand-over to a thread of usual priority. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync, renameSync, statSync, writeFileSync } from 'node:fs';
import { type TestContext, test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';
import { BLOCK_BYTES } from '../../lib/core/layer-format.ts';
import { BackgroundFill } from '../../lib/store/background-fill.ts';
import { LayerLoader } from '../../lib/store/layer-loader.ts';
import type {
  FillRequest,
  FillResult,
  LayerInspection,
  LoadWorkerMessage,
  LoadWorkerResponse,
} from '../../lib/store/load-worker-protocol.ts';
import { ResidentStore } from '../../lib/store/resident-store.ts';
import { computeScratchLayout, computeThreadAddress } from '../../lib/store/scratch-layout.ts';
import { placeLayer } from '../../lib/store/section-placement.ts';
import {
  createLayerPath,
  createManifest,
  expectedLookup,
  getLoadedTable,
  lookup,
  type TestTable,
  tableRef,
  temporaryFolder,
  writeTable,
} from './support/layers.ts';

/** Three blocks of rows. */
const TABLE: TestTable = {
  name: 't',
  dim: 16,
  shardIndex: 0,
  shardNum: 1,
  keys: Array.from({ length: 40_000 }, (_, i) => BigInt(i) * BigInt(i)),
};
const POLICY_FIELD = 38;
const SCHED_IDLE = '5';

class LoadThread {
  readonly #worker: Worker;

  constructor(context: TestContext) {
    const script = new URL('../../lib/store/load-worker.js', import.meta.url);
    this.#worker = new Worker(script, { workerData: { whenIdle: false } });
    context.after(() => this.#worker.terminate());
  }

  ask(request: LoadWorkerMessage): Promise<unknown> {
    return new Promise((resolve, reject) => {
      this.#worker.once('message', (answer: LoadWorkerResponse) => {
        if (answer.ok) resolve(answer.result);
        else reject(new Error(answer.message));
      });
      this.#worker.postMessage(request);
    });
  }
}

async function makeFillRequest(thread: LoadThread, path: string): Promise<FillRequest> {
  const file = { path, descriptor: undefined, dataKey: undefined };
  const { header } = (await thread.ask({ type: 'inspect', id: 1, ...file })) as LayerInspection;
  const { sections, memories } = placeLayer(header, 1, false);
  const toMemory = (bytes: number): WebAssembly.Memory => {
    const pages = Math.ceil(bytes / 65_536);
    return new WebAssembly.Memory({ initial: pages, maximum: pages, shared: true });
  };
  return {
    type: 'fill',
    id: 2,
    ...file,
    header,
    sections,
    memories: memories.map(toMemory),
    hashAddress: computeThreadAddress(computeScratchLayout(header), 0),
    kernelKind: 'wasm',
    bytesPerSecond: 1e12,
    blocks: { first: 0, end: header.blockCount },
    part: 0,
    progress: undefined,
    handOver: undefined,
  };
}

function readAll(request: FillRequest): Buffer {
  return Buffer.concat(request.memories.map(({ buffer }) => Buffer.from(buffer.slice(0))));
}

test('a handed over fill stops, and another thread fills the rest', async (context) => {
  const folder = temporaryFolder(context);
  const { contentId } = writeTable(folder, TABLE);
  const path = createLayerPath(folder)(TABLE.name, contentId);
  const [first, second] = [new LoadThread(context), new LoadThread(context)];
  const whole = await makeFillRequest(first, path);
  assert.ok(whole.header.blockCount >= 2, `${whole.header.blockCount} blocks`);
  await first.ask(whole);

  const parts = await makeFillRequest(first, path);
  const begun = await first.ask({ ...parts, blocks: { first: 0, end: 1 } });
  assert.deepEqual(begun, { filter: undefined, next: 1 });
  const background = new BackgroundFill();
  // Nothing was filled, so the fill is handed over.
  await background.watch(2, 1e6, AbortSignal.timeout(60_000));
  const rest = { first: 1, end: parts.header.blockCount };
  const stopped = await first.ask({ ...parts, blocks: rest, handOver: background.words });
  assert.deepEqual(stopped, { filter: undefined, next: 1 });
  assert.notDeepEqual(readAll(parts), readAll(whole));
  const { next } = (await second.ask({ ...parts, blocks: rest })) as FillResult;
  assert.equal(next, rest.end);
  assert.deepEqual(readAll(parts), readAll(whole));
});

test('every thread of a fill reads the file that the path named first', {
  skip: process.platform !== 'linux' && 'other systems open the path again',
}, async (context) => {
  const folder = temporaryFolder(context);
  const { contentId } = writeTable(folder, TABLE);
  const path = createLayerPath(folder)(TABLE.name, contentId);
  const thread = new LoadThread(context);
  const expected = await makeFillRequest(thread, path);
  await thread.ask(expected);
  const found = await makeFillRequest(thread, path);
  const loader = new LayerLoader();
  context.after(() => loader.stop());
  const filling = loader.fill(found);
  writeFileSync(`${path}.new`, Buffer.alloc(statSync(path).size));
  renameSync(`${path}.new`, path);
  await filling;
  assert.deepEqual(readAll(found), readAll(expected));
});

test('a fill is handed over when it stalls, not while it keeps its rate or has ended', async () => {
  const stalled = new BackgroundFill();
  const same = new BackgroundFill(stalled.words);
  await stalled.watch(1_000, 100, new AbortController().signal);
  assert.ok(same.isHandedOver);

  const busy = new BackgroundFill();
  const ended = new AbortController();
  const watching = busy.watch(1_000, 100, ended.signal);
  for (let i = 0; i < 900; i++) busy.addBlock();
  await setTimeout(600);
  ended.abort();
  await watching;
  assert.ok(!busy.isHandedOver);
});

test('layers with a limited rate are loaded in idle time', {
  skip: spawnSync('chrt', ['-p', `${process.pid}`]).status !== 0 && 'there is no chrt',
}, async (context) => {
  const folder = temporaryFolder(context);
  const store = new ResidentStore({ budgetBytes: 64 << 20 });
  context.after(() => store.close());
  const layerPath = createLayerPath(folder);
  const load = (version: string, salt: number, bytesPerSecond: number): Promise<unknown> => {
    const ref = tableRef(TABLE, writeTable(folder, TABLE, { salt }));
    const manifest = createManifest(version, [ref]);
    return store.load({ manifest, shardIndex: 0, layerPath, bytesPerSecond });
  };
  await load('1', 1, Number.POSITIVE_INFINITY);
  await load('2', 2, 100 * BLOCK_BYTES);
  for (const [version, salt] of [
    ['1', 1],
    ['2', 2],
  ] as const) {
    const rows = lookup(getLoadedTable(store, version, TABLE.name), TABLE.keys);
    assert.deepEqual(rows, expectedLookup(TABLE, [], TABLE.keys, salt));
  }
  const readPolicy = (thread: string): string | undefined => {
    const stat = readFileSync(`/proc/self/task/${thread}/stat`, 'utf8');
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[POLICY_FIELD];
  };
  // The thread does not wait until it has the policy.
  while (!readdirSync('/proc/self/task').map(readPolicy).includes(SCHED_IDLE)) await setTimeout(10);
  assert.equal(readPolicy(`${process.pid}`), '0', 'the main thread keeps its policy');
});
