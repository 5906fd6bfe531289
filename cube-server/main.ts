#!/usr/bin/env node
/** cube-server: one replica of one shard. */
import { run } from './cli.ts';

process.exitCode = await run();
