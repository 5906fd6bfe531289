/**
 * Finds the name that a misspelled name was probably meant to be, for error messages. The distance
 * counts inserted, deleted, replaced and swapped characters; case and separators do not count. A
 * name without its last part (`poll` for `poll-ms`) is near.
 */

const NAMES_MAX = 1_000;
const NAME_CHARS_MAX = 100;
const LISTED_MAX = 20;

/** A hint about an unknown name: the nearest known name, or the known names. */
export function suggestNames(name: string, known: Iterable<string>): string {
  const names = [...known];
  const nearest = findNearestName(name, names);
  if (nearest !== undefined) return `did you mean ${JSON.stringify(nearest)}?`;
  if (names.length === 0) return 'no fields are known here';
  const others = names.length - LISTED_MAX;
  const listed = names.slice(0, LISTED_MAX).join(', ');
  return `known here: ${listed}${others > 0 ? ` and ${others} others` : ''}`;
}

/** The known name nearest to `name`; undefined when none is near. */
export function findNearestName(name: string, known: readonly string[]): string | undefined {
  if (name.length > NAME_CHARS_MAX) return undefined;
  const normal = normalize(name);
  let best: string | undefined;
  let bestDistance = Math.floor(normal.length / 3) + 1;
  for (const one of known.slice(0, NAMES_MAX)) {
    if (Math.abs(one.length - name.length) > NAME_CHARS_MAX) continue;
    const other = normalize(one);
    const isStart = normal.length >= 3 && other.startsWith(normal);
    const distance = isStart ? 1 : measureDistance(normal, other);
    if (distance < bestDistance) {
      best = one;
      bestDistance = distance;
    }
  }
  return best;
}

function normalize(name: string): string {
  return name.toLowerCase().replaceAll(/[-_. ]/g, '');
}

/** The number of edits between two texts, where a swap of two neighbours is one edit. */
function measureDistance(a: string, b: string): number {
  let beforeLast: number[] = [];
  let last = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const replaced = last[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1);
      let distance = Math.min(replaced, last[j]! + 1, row[j - 1]! + 1);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) {
        distance = Math.min(distance, beforeLast[j - 2]! + 1);
      }
      row.push(distance);
    }
    beforeLast = last;
    last = row;
  }
  return last[b.length]!;
}
