/** Requests that a server found too large, cut again: what an answer weighs is known before only where rows have one size. */
import type { RequestPart, ShardRequest } from './scatter.ts';

/** A request as two of half its keys. */
export function halves({ shard, start, end, parts }: ShardRequest): ShardRequest[] {
  const middle = (start + end) >>> 1;
  const within = (from: number, to: number): RequestPart[] =>
    parts.flatMap((part) => {
      const first = Math.max(part.start, from);
      const last = Math.min(part.start + part.count, to);
      return first < last ? [{ group: part.group, start: first, count: last - first }] : [];
    });
  return [
    { shard, start, end: middle, parts: within(start, middle) },
    { shard, start: middle, end, parts: within(middle, end) },
  ];
}
