#!/usr/bin/env node
/**
 * serving: serves predictions; `serving load-redis` loads rows into Redis for processes with
 * --store redis.
 */
import { runProgram } from '../lib/platform/program.ts';

async function loadRedis(): Promise<number> {
  const { runCli } = await import('../lib/platform/cli.ts');
  const { createLoadRedisCli } = await import('./load-redis.ts');
  return runCli(createLoadRedisCli());
}

async function serve(): Promise<number> {
  const { run } = await import('./cli.ts');
  return run();
}

runProgram(process.argv[2] === 'load-redis' ? loadRedis : serve);
