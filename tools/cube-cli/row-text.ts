/** Keys and rows for people and programs. */

import type { TableDtype } from '../../lib/core/manifest.ts';
import { decodeRows } from '../../lib/core/row-codec.ts';

/** The shortest decimal that is this f32. */
export function f32Text(value: number): string {
  for (let digits = 1; digits < 9; digits++) {
    const text = String(Number(value.toPrecision(digits)));
    if (Math.fround(Number(text)) === value) return text;
  }
  return String(value);
}

/** A number as JSON has it, the others as text. */
function f32Json(value: number): number | string {
  return Number.isFinite(value) ? Number(f32Text(value)) : String(value);
}

/** @param dim undefined: as many as there are bytes for */
export function elementsOf(row: Uint8Array, dtype: TableDtype, dim: number | undefined): number[] {
  if (dtype === 'bytes') return [...decodeRows('f32', row, row.length / 4, 1)];
  return [...decodeRows(dtype, row, dim ?? row.length / 4, 1)];
}

export function hexOf(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('hex');
}

export function rowText(elements: readonly number[]): string {
  return elements.map(f32Text).join(' ');
}

export function rowJson(elements: readonly number[]): (number | string)[] {
  return elements.map(f32Json);
}

/** A value of any length: as text when it is nothing else, else as hex. */
export function valueText(bytes: Uint8Array): string {
  const text = Buffer.from(bytes).toString('utf8');
  const plain = /^[\p{L}\p{N}\p{P}\p{S}\p{Zs}]*$/u.test(text) && !text.includes('\ufffd');
  return plain ? JSON.stringify(text) : hexOf(bytes);
}
