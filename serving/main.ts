#!/usr/bin/env node
/** serving: answers predictions; `serving load-redis` loads rows for those that answer from Redis. */
import { runCli } from '../lib/platform/cli.ts';
import { run } from './cli.ts';

async function loadRedis(): Promise<number> {
  const { createLoadRedis } = await import('./load-redis.ts');
  return runCli(createLoadRedis());
}

process.exitCode = await (process.argv[2] === 'load-redis' ? loadRedis() : run());
