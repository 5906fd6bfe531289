/** Which feeds may share a call of `process`. */
import type { OpValues } from './op.ts';
import { findArrayType, isTensor } from './pipeline-tensor.ts';

/** Equal for feeds with equal names, element types and shapes; the first dimension may differ. */
export function toShapeKey(feed: OpValues): string {
  return Object.keys(feed)
    .sort()
    .map((name) => `${JSON.stringify(name)}:${describe(feed[name])}`)
    .join();
}

function describe(value: unknown): string {
  if (isTensor(value)) return `${value.dataType}/${value.shape.length}/${value.shape.slice(1)}`;
  const type = findArrayType(value);
  if (type !== undefined) return `${type}[${(value as ArrayLike<unknown>).length}]`;
  if (!Array.isArray(value)) return typeof value;
  // Nested lists are tensors whose first dimension is the length of the outer list.
  const [first] = value;
  return Array.isArray(first) ? `list/${describeInner(first)}` : `list[${value.length}]`;
}

function describeInner(list: readonly unknown[]): string {
  const [first] = list;
  return Array.isArray(first) ? `${list.length},${describeInner(first)}` : `${list.length}`;
}
