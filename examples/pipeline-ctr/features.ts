/** Criteo rows as the inputs of the demo's model: hashed ids and scaled dense features. */
import { readFileSync } from 'node:fs';
import { CubeError, createTensor, type PipelineTensor, xxh64 } from 'hypercube/pipeline';

const DENSE = 13;
const SLOTS = 26;
const ROWS_MAX = 1_000;

interface Features {
  readonly hash: { readonly modulo: string };
  readonly slots: readonly { readonly index: number }[];
  readonly dense: {
    readonly features: readonly {
      readonly missing: number;
      readonly shift: number;
      readonly scale: number;
    }[];
  };
}

const features: Features = JSON.parse(
  readFileSync(new URL('../../data/demo/features.json', import.meta.url), 'utf8'),
);
const modulo = BigInt(features.hash.modulo);
const encoder = new TextEncoder();

export interface ModelInputs {
  readonly ids: PipelineTensor;
  readonly dense: PipelineTensor;
}

/** @param text rows of label, I1 … I13 and C1 … C26, separated by tabs; empty values are missing */
export function readRows(text: string): ModelInputs {
  const lines = text.split('\n').filter((line) => line !== '');
  if (lines.length === 0 || lines.length > ROWS_MAX) {
    throw new CubeError('INVALID_ARGUMENT', `expected 1 to ${ROWS_MAX} rows, got ${lines.length}`);
  }
  const ids = new BigInt64Array(lines.length * SLOTS);
  const dense = new Float32Array(lines.length * DENSE);
  for (const [row, line] of lines.entries()) {
    const values = line.split('\t');
    if (values.length !== 1 + DENSE + SLOTS) {
      throw new CubeError('INVALID_ARGUMENT', `row ${row + 1} has ${values.length} columns`);
    }
    for (let i = 0; i < DENSE; i++) dense[row * DENSE + i] = scale(values[1 + i] ?? '', i);
    for (let i = 0; i < SLOTS; i++) ids[row * SLOTS + i] = hash(values[1 + DENSE + i] ?? '', i);
  }
  return {
    ids: createTensor('INT64', [lines.length, SLOTS], ids),
    dense: createTensor('FP32', [lines.length, DENSE], dense),
  };
}

function hash(feature: string, slot: number): bigint {
  return xxh64(encoder.encode(`${features.slots[slot]?.index}${feature}`)) % modulo;
}

function scale(text: string, column: number): number {
  const { missing = 0, shift = 0, scale: factor = 1 } = features.dense.features[column] ?? {};
  const value = text === '' ? missing : Number(text);
  return (Math.log1p(Math.max(value, 0)) - shift) * factor;
}
