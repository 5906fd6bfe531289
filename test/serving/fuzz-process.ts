/** Part of `npm run fuzz`: hostile requests to the protocols of serving. */
import { readFuzzOptions } from '../support/fuzz-options.ts';
import { fuzzProtocols } from './support/fuzz-protocols.ts';

const { seconds, seed } = readFuzzOptions();
process.stdout.write(`${seconds} s, seed ${seed}\n`);
const ends: (() => unknown)[] = [];
const after = (end: () => unknown): unknown => ends.push(end);
try {
  const { hostile, answered } = await fuzzProtocols(
    { after } as Parameters<typeof fuzzProtocols>[0],
    { seed, seconds },
  );
  process.stdout.write(`${hostile} hostile requests, ${answered} regular ones answered\n`);
} finally {
  for (const end of ends.reverse()) await end();
}
