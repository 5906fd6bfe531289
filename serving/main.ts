#!/usr/bin/env node
/** serving: answers predictions; `serving load-redis` loads rows for those that answer from Redis. */
import { runCli } from '../lib/platform/cli.ts';
import { run } from './cli.ts';
import { createLoadRedis } from './load-redis.ts';

process.exitCode = process.argv[2] === 'load-redis' ? await runCli(createLoadRedis()) : await run();
