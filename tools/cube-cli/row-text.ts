/** Formats rows and values as text and JSON. */

import type { TableDtype } from '../../lib/core/manifest.ts';
import { decodeRows } from '../../lib/core/row-codec.ts';

/** Formats a number as the shortest decimal that parses to the same f32. */
export function formatF32(value: number): string {
  for (let digits = 1; digits <= 9; digits++) {
    const text = String(Number(value.toPrecision(digits)));
    if (Math.fround(Number(text)) === value) return text;
  }
  return String(value);
}

/** Converts to a JSON number; infinities and NaN become strings. */
function toF32Json(value: number): number | string {
  return Number.isFinite(value) ? Number(formatF32(value)) : String(value);
}

/** @param dim undefined for as many f32 elements as the row has bytes for */
export function decodeElements(
  row: Uint8Array,
  dtype: TableDtype,
  dim: number | undefined,
): number[] {
  if (dtype === 'bytes') return [...decodeRows('f32', row, row.length / 4, 1)];
  return [...decodeRows(dtype, row, dim ?? row.length / 4, 1)];
}

export function toHex(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('hex');
}

export function formatRow(elements: readonly number[]): string {
  return elements.map(formatF32).join(' ');
}

export function toRowJson(elements: readonly number[]): (number | string)[] {
  return elements.map(toF32Json);
}

/** Formats a value of any length: as quoted text when it is printable, otherwise as hex. */
export function formatValue(bytes: Uint8Array): string {
  const text = Buffer.from(bytes).toString('utf8');
  const isPrintable = /^[\p{L}\p{N}\p{P}\p{S}\p{Zs}]*$/u.test(text) && !text.includes('\ufffd');
  return isPrintable ? JSON.stringify(text) : toHex(bytes);
}
