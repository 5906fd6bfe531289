/**
 * `npm run soak`: runs long tests, each in its own process. Tests of `node:test` and programs with
 * counts of their own are started in the same way; both exit with 1 when something was wrong.
 */
import { runLongPrograms } from '../../bench/support/long-programs.ts';
import { parseIntegerBetween } from '../../lib/platform/cli.ts';

const SEED = {
  flags: '--seed <n>',
  description: 'Seed that decides everything random (default: random)',
  parse: parseIntegerBetween(0, 2 ** 31 - 1),
};
const MINUTES = {
  flags: '--minutes <n>',
  description: 'Duration in minutes (default: 2)',
  parse: parseIntegerBetween(1, 10_000),
};
const REQUESTS = {
  flags: '--requests <n>',
  description: 'Requests in all, rounded up to 100000 (default: 10000000)',
  parse: parseIntegerBetween(200_000, 1_000_000_000),
};

process.exitCode = await runLongPrograms({
  name: 'soak',
  description: 'Runs long tests. An interrupted run leaves no process and no folder.',
  folder: import.meta.dirname,
  programs: {
    chaos: {
      script: 'chaos.soak.js',
      summary:
        'Kills, stops, good and damaged versions and rollbacks under callers that check rows',
      options: [SEED, MINUTES],
    },
    crowd: {
      script: 'crowd.soak.js',
      summary: 'Thousands of idle and slow connections to one server',
    },
    damage: {
      script: 'damage.soak.js',
      summary: 'Random damage to layer files of every layout and dtype, in memory and on disk',
      options: [SEED, MINUTES],
    },
    'half-open': {
      script: 'half-open.soak.js',
      summary: 'Ten thousand half-open TLS handshakes beside honest callers',
    },
    kills: {
      script: 'kills.soak.js',
      summary: 'Kills at every step of an agent combined with every step of a server',
    },
    pipeline: {
      script: 'pipeline.soak.js',
      summary: 'Memory of a pipeline after many requests with failures, timeouts and skips',
      options: [REQUESTS],
    },
    rollouts: {
      script: 'rollouts.soak.js',
      summary: 'Fifty rollouts and rollbacks under callers at full speed',
    },
    'version-switches': {
      script: 'version-switches.soak.js',
      summary: 'Memory and answers over many version switches of one server',
    },
  },
});
