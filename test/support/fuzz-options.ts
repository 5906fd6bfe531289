/** The options of the fuzz programs, which `npm run fuzz` has checked. */
import { parseArgs } from 'node:util';

export function readFuzzOptions(): { readonly seconds: number; readonly seed: number } {
  const { values } = parseArgs({
    options: {
      seconds: { type: 'string', default: '10' },
      seed: { type: 'string', default: String(Date.now() % 1e9) },
    },
  });
  return { seconds: Number(values.seconds), seed: Number(values.seed) };
}
