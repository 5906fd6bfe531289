/** `npm run fuzz -- --seconds 60 --seed 5`: the fuzz test for as long as asked, from the seed given. */
import { parseArgs } from 'node:util';
import { fuzzEcho } from './fuzz-server.ts';

const { values } = parseArgs({
  options: { seconds: { type: 'string' }, seed: { type: 'string' } },
});
const seconds = Number(values.seconds ?? 10);
const seed = Number(values.seed ?? Date.now() % 1e9);
process.stdout.write(`fuzzing for ${seconds} s, seed ${seed}\n`);
const { connections, answered } = await fuzzEcho({ seed, seconds });
process.stdout.write(
  `${connections} hostile connections, ${answered} calls beside them answered\n`,
);
