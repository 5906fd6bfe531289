/** `npm run fuzz -- --seconds 60 --seed 5`: the fuzz tests for as long as asked, half of it each, from the seed given. */
import { parseArgs } from 'node:util';
import { fuzzDoors } from '../serving/fuzz-doors.ts';
import { fuzzEcho } from './fuzz-server.ts';

const { values } = parseArgs({
  options: { seconds: { type: 'string' }, seed: { type: 'string' } },
});
const seconds = Number(values.seconds ?? 20) / 2;
const seed = Number(values.seed ?? Date.now() % 1e9);
const say = (line: string): unknown => process.stdout.write(`${line}\n`);
const ends: (() => unknown)[] = [];
const after = (end: () => unknown): unknown => ends.push(end);
try {
  say(`fuzzing the frames of a server for ${seconds} s, seed ${seed}`);
  const { connections, answered } = await fuzzEcho({ seed, seconds });
  say(`${connections} hostile connections, ${answered} calls beside them answered`);
  say(`fuzzing the doors of serving for ${seconds} s, seed ${seed}`);
  const doors = await fuzzDoors({ after } as Parameters<typeof fuzzDoors>[0], { seed, seconds });
  say(`${doors.hostile} hostile requests, ${doors.answered} honest ones beside them answered`);
} finally {
  for (const end of ends.reverse()) await end();
}
