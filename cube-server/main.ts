#!/usr/bin/env node
/** cube-server: one replica of one shard. */
import { keepCompiledCode } from '../lib/platform/compile-cache.ts';

keepCompiledCode();
const { run } = await import('./cli.ts');
process.exitCode = await run();
