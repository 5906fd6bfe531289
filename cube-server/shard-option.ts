/** `--shard`: one shard, or several that one supervisor keeps running: "3", "0-3", "0,2,5". */
import { InvalidArgumentError } from '../lib/platform/cli.ts';

const SHARDS_MAX = 256;

/** Option parser. @returns shard indexes in ascending order */
export function parseShards(text: string): number[] {
  const shards = new Set<number>();
  for (const part of text.split(',')) {
    const match = /^(\d{1,5})(?:-(\d{1,5}))?$/.exec(part.trim());
    const first = Number(match?.[1]);
    const last = Number(match?.[2] ?? match?.[1]);
    if (match === null || last < first || last > 65_535) {
      throw new InvalidArgumentError(
        'Expected a shard such as 3, a range such as 0-3, or a list such as 0,2,5.',
      );
    }
    if (last - first >= SHARDS_MAX) {
      throw new InvalidArgumentError(`At most ${SHARDS_MAX} shards run under one supervisor.`);
    }
    for (let shard = first; shard <= last; shard++) shards.add(shard);
  }
  return [...shards].sort((a, b) => a - b);
}
