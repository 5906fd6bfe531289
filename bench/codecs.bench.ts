/**
 * Own codecs and hashes against the packages that could replace them: protobufjs for messages,
 * xxhash-wasm for hashes. Gives the figures of docs/adr/0027-own-codecs-and-hashing.md. Rates are
 * millions of operations per second on one thread, the best of several interleaved runs; the ratio
 * is own over package. Run it with `npm run bench -- codecs`.
 */
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import protobuf from 'protobufjs';
import xxhash from 'xxhash-wasm';
import { RowHasher, xxh64 } from '../lib/core/hash.ts';
import { createKernels, createMemory } from '../lib/core/kernels/kernels.ts';
import { xxh64Words } from '../lib/core/kernels/xxh64.ts';
import { decodeCtrRequest, encodeCtrRequest } from '../proto/ctr.ts';
import { DictRequest } from '../proto/dict.ts';
import { decodeGeneralRequest } from '../proto/general-model.ts';
import { encodeLookupRequest, LookupRequestDecoder } from '../proto/lookup.ts';
import { decodeOipRequest } from '../proto/oip.ts';

const PROTO_FOLDER = join(import.meta.dirname, '..', '..', 'proto');
const RUNS = 7;
const RUN_MS = 60;
const ROWS = 64;
const DENSE = 13;
const SLOTS = 26;

/** One way to do an operation. Its result is returned so that the work cannot be optimised away. */
interface Candidate {
  readonly name: string;
  readonly run: () => unknown;
}

let sink: unknown;

/** @returns operations per second of one timed run */
function timeRun({ run }: Candidate): number {
  let operations = 0;
  const start = performance.now();
  let elapsedMs = 0;
  while (elapsedMs < RUN_MS) {
    for (let i = 0; i < 16; i++) sink = run();
    operations += 16;
    elapsedMs = performance.now() - start;
  }
  return (operations * 1000) / elapsedMs;
}

/** Prints a row for each candidate; the first is ours. @param bytes of one operation */
function compare(title: string, bytes: number, candidates: readonly Candidate[]): void {
  const best = candidates.map(() => 0);
  for (let run = 0; run < RUNS; run++) {
    candidates.forEach((candidate, i) => {
      best[i] = Math.max(best[i] ?? 0, timeRun(candidate));
    });
  }
  const [own = 0] = best;
  candidates.forEach(({ name }, i) => {
    const rate = best[i] ?? 0;
    const cells = [
      title.padEnd(38),
      name.padEnd(24),
      (rate / 1e6).toFixed(rate < 1e5 ? 4 : 3).padStart(9),
      ((rate * bytes) / 1e6).toFixed(0).padStart(8),
      i === 0 ? '' : (own / rate).toFixed(2).padStart(7),
    ];
    process.stdout.write(`${cells.join(' ')}\n`);
  });
}

function lookUpType(file: string, name: string): protobuf.Type {
  return protobuf.loadSync(join(PROTO_FOLDER, file)).lookupType(name);
}

function encodeFields(type: protobuf.Type, fields: object): Uint8Array {
  return Uint8Array.from(type.encode(type.fromObject(fields)).finish());
}

function compareLookupHead(): void {
  const type = lookUpType('lookup.proto', 'hypercube.LookupRequest');
  const groups = Array.from({ length: SLOTS }, (_, i) => ({ table: `table_${i}`, count: 400 + i }));
  const head = { bundle: 'ctr', version: '20260101', shardIndex: 1, shardNum: 4, groups };
  const bytes = Uint8Array.from(encodeLookupRequest(head));
  const decoder = new LookupRequestDecoder();
  compare('lookup head, 26 tables, decode', bytes.length, [
    { name: 'own', run: () => decoder.decode(bytes) },
    { name: 'protobufjs', run: () => type.decode(bytes) },
  ]);
}

function compareSeek(): void {
  const type = lookUpType('dict.proto', 'rec.mcube.DictRequest');
  const keys = Array.from({ length: 1000 }, (_, i) =>
    String((BigInt(i) * 0x9e37_79b9_7f4a_7c15n) % (1n << 64n)),
  );
  const bytes = encodeFields(type, { keys });
  const request = new DictRequest(1000);
  compare('seek, 1000 keys, decode', bytes.length, [
    { name: 'own', run: () => request.decode(bytes, 0, bytes.length) },
    { name: 'protobufjs', run: () => type.decode(bytes) },
  ]);
}

function comparePredict(): void {
  const type = lookUpType('ctr.proto', 'hypercube.PredictRequest');
  const request = {
    ...decodeCtrRequest(new Uint8Array(0), 0),
    model: 'ctr',
    rowCount: ROWS,
    dense: Float64Array.from({ length: ROWS * DENSE }, (_, i) => i),
    features: Array.from({ length: ROWS * SLOTS }, (_, i) => (i * 2_654_435_761).toString(16)),
  };
  const bytes = Uint8Array.from(encodeCtrRequest(request));
  const message = type.decode(bytes);
  compare('Predict, 64 rows, decode', bytes.length, [
    { name: 'own', run: () => decodeCtrRequest(bytes, 1 << 20) },
    { name: 'protobufjs', run: () => type.decode(bytes) },
  ]);
  compare('Predict, 64 rows, encode', bytes.length, [
    { name: 'own', run: () => encodeCtrRequest(request) },
    { name: 'protobufjs', run: () => type.encode(message).finish() },
  ]);
}

function compareTensors(): void {
  const general = lookUpType(
    'general-model.proto',
    'baidu.paddle_serving.predictor.general_model.Request',
  );
  const floats = Array.from({ length: ROWS * DENSE }, (_, i) => i / 3);
  const ids = Array.from({ length: ROWS * SLOTS }, (_, i) => i * 1_000_003);
  const generalBytes = encodeFields(general, {
    tensor: [
      { name: 'dense', elemType: 1, shape: [ROWS, DENSE], floatData: floats },
      { name: 'ids', elemType: 0, shape: [ROWS, SLOTS], int64Data: ids },
    ],
  });
  compare('general model, 64 rows, decode', generalBytes.length, [
    {
      name: 'own',
      run: () => decodeGeneralRequest(generalBytes, { tensors: 100, values: 1 << 20 }),
    },
    { name: 'protobufjs', run: () => general.decode(generalBytes) },
  ]);
  const infer = lookUpType('oip.proto', 'inference.ModelInferRequest');
  const inferBytes = encodeFields(infer, {
    modelName: 'ctr',
    inputs: [
      { name: 'dense', datatype: 'FP32', shape: [ROWS, DENSE], contents: { fp32Contents: floats } },
      { name: 'ids', datatype: 'INT64', shape: [ROWS, SLOTS], contents: { int64Contents: ids } },
    ],
  });
  compare('ModelInfer, 64 rows, decode', inferBytes.length, [
    { name: 'own', run: () => decodeOipRequest(inferBytes) },
    { name: 'protobufjs', run: () => infer.decode(inferBytes) },
  ]);
}

/** A message with a field that its definition does not know, decoded and written again. */
function showUnknownFields(): void {
  const type = lookUpType('lookup.proto', 'hypercube.LookupRequest');
  const known = encodeFields(type, { bundle: 'ctr' });
  const bytes = Uint8Array.of(...known, 0xfa, 0x07, 3, 1, 2, 3);
  const written = type.encode(type.decode(bytes)).finish();
  process.stdout.write(
    `\nunknown fields: ${bytes.length} bytes read, ` +
      `${written.length} bytes written by protobufjs\n\n`,
  );
}

async function compareHashes(): Promise<void> {
  const { h64, h64Raw } = await xxhash();
  const feature = '68fd1e64ab12cd34';
  const text = new TextEncoder().encode(`14${feature}`);
  compare('one text of 18 bytes', text.length, [
    { name: 'own xxh64', run: () => xxh64(text) },
    { name: 'xxhash-wasm h64Raw', run: () => h64Raw(text) },
  ]);
  const key = new Uint32Array(2);
  const scheme = { scheme: 'xxh64-concat', seed: 0n, modulo: 0n } as const;
  const single = new RowHasher(scheme, [{ name: 'C1', index: 14 }]);
  compare('one feature of 16 characters', text.length, [
    { name: 'own RowHasher', run: () => single.hashRows([feature], 1, key) },
    { name: 'xxhash-wasm h64', run: () => h64(`14${feature}`) },
  ]);
  const slots = Array.from({ length: SLOTS }, (_, i) => ({ name: `C${i}`, index: 14 + i }));
  const features = Array.from({ length: ROWS * SLOTS }, (_, i) => `${feature}${i}`);
  const keys = new Uint32Array(2 * features.length);
  const hasher = new RowHasher(scheme, slots);
  const words = new BigUint64Array(keys.buffer);
  compare('64 rows of 26 features', features.length * text.length, [
    { name: 'own RowHasher', run: () => hasher.hashRows(features, ROWS, keys) },
    {
      name: 'xxhash-wasm h64',
      run: () => {
        for (let i = 0; i < features.length; i++) {
          words[i] = h64(`${14 + (i % SLOTS)}${features[i]}`);
        }
      },
    },
  ]);
  const page = new Uint8Array(4096).fill(7);
  const sum = new Uint32Array(2);
  compare('a header page of 4 KiB', page.length, [
    { name: 'own xxh64', run: () => xxh64(page) },
    { name: 'own, without WebAssembly', run: () => xxh64Words(page, 0, 4096, 0, 0, sum, 0) },
    { name: 'xxhash-wasm h64Raw', run: () => h64Raw(page) },
  ]);
  const block = 1 << 20;
  const memory = createMemory(2 * block);
  const kernels = createKernels(memory);
  const bytes = new Uint8Array(memory.buffer, block, block).fill(7);
  compare('a block of 1 MiB in table memory', block, [
    { name: 'own kernel', run: () => kernels.xxh64(block, block, 0, 0, 64) },
    { name: 'xxhash-wasm h64Raw', run: () => h64Raw(bytes) },
    { name: 'node:crypto sha256', run: () => createHash('sha256').update(bytes).digest() },
  ]);
}

process.stdout.write(
  'Own codecs and hashes against the packages that could replace them.\n' +
    `${'operation'.padEnd(38)} ${'by'.padEnd(24)} ` +
    `${'M/s'.padStart(9)} ${'MB/s'.padStart(8)}   own/it\n`,
);
compareLookupHead();
compareSeek();
comparePredict();
compareTensors();
showUnknownFields();
await compareHashes();
if (sink === undefined) process.stdout.write('\n');
