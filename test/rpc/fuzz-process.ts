/** Part of `npm run fuzz`: hostile bytes and frames to a server of lib/rpc. */
import { readFuzzOptions } from '../support/fuzz-options.ts';
import { fuzzEchoServer } from './support/fuzz-server.ts';

const { seconds, seed } = readFuzzOptions();
process.stdout.write(`${seconds} s, seed ${seed}\n`);
const { connections, answered } = await fuzzEchoServer({ seed, seconds });
process.stdout.write(`${connections} hostile connections, ${answered} regular calls answered\n`);
