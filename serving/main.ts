#!/usr/bin/env node
/**
 * serving: serves predictions; `serving load-redis` loads rows into Redis for processes with
 * --store redis.
 */
import { keepCompiledCode } from '../lib/platform/compile-cache.ts';
import { letHeapGrow } from '../lib/platform/heap-growth.ts';

async function loadRedis(): Promise<number> {
  const { runCli } = await import('../lib/platform/cli.ts');
  const { createLoadRedisCli } = await import('./load-redis.ts');
  return runCli(createLoadRedisCli());
}

async function serve(): Promise<number> {
  letHeapGrow();
  const { run } = await import('./cli.ts');
  return run();
}

keepCompiledCode();
process.exitCode = await (process.argv[2] === 'load-redis' ? loadRedis() : serve());
