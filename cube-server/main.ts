#!/usr/bin/env node
/** cube-server: one replica of one shard. */
import { keepCompiledCode } from '../lib/platform/compile-cache.ts';
import { letHeapGrow } from '../lib/platform/heap-growth.ts';

keepCompiledCode();
letHeapGrow();
const { run } = await import('./cli.ts');
process.exitCode = await run();
