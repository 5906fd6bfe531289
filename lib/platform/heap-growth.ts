/**
 * How far the JavaScript heap of a server grows before it is collected.
 *
 * V8 collects the old space when its size, and the size of all array buffers made since the last
 * collection, come within a semi-space of a limit. By default that limit is little more than the
 * size after the last collection, so that in a heap of 17 MB about 7 MB of request bodies and keys
 * cause a collection, also when they are garbage already: one or two each second under load. Each
 * takes 30 to 40 ms of CPU time, on threads that compete with lookups and the model for the cores.
 */
import { setFlagsFromString } from 'node:v8';

/** The limit is four times the size after a collection. V8 still respects the maximum heap size. */
const GROWTH_PERCENT = 300;

/**
 * Call when all modules are loaded, and before the process has work to do: V8 then refuses compiled
 * code that was kept with other flags, also that of Node's own modules.
 */
export function letHeapGrow(): void {
  setFlagsFromString(`--heap-growing-percent=${GROWTH_PERCENT}`);
}
