/** `npm run fuzz`: sends random invalid input to every protocol, from a seed. */
import { runLongPrograms } from '../../bench/support/long-programs.ts';
import { parseIntegerBetween } from '../../lib/platform/cli.ts';

const DAY_SECONDS = 86_400;

const OPTIONS = [
  {
    flags: '--seconds <n>',
    description: 'Duration of each program in seconds (default: 10)',
    parse: parseIntegerBetween(1, DAY_SECONDS),
  },
  {
    flags: '--seed <n>',
    description: 'Seed that decides the input (default: random)',
    parse: parseIntegerBetween(0, 2 ** 31 - 1),
  },
];

process.exitCode = await runLongPrograms({
  name: 'fuzz',
  description: 'Sends random invalid input. An interrupted run leaves no process and no folder.',
  folder: import.meta.dirname,
  programs: {
    credentials: {
      script: 'credentials-process.js',
      summary: 'Invalid API keys, headers and metadata to every protocol of serving',
      options: OPTIONS,
    },
    frames: {
      script: '../rpc/fuzz-process.js',
      summary: 'Bytes and frames to the server of lib/rpc',
      options: OPTIONS,
    },
    handshakes: {
      script: 'handshakes-process.js',
      summary: 'Damaged, slow, half-open and renegotiated TLS handshakes',
      options: OPTIONS,
    },
    protocols: {
      script: '../serving/fuzz-process.js',
      summary: 'Requests to every protocol of serving',
      options: OPTIONS,
    },
    'sealed-files': {
      script: 'sealed-files-process.js',
      summary: 'Damaged key files, encrypted files and rewrapped keys',
      options: OPTIONS,
    },
  },
});
