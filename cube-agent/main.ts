#!/usr/bin/env node
/** The cube-agent command. */
import { keepCompiledCode } from '../lib/platform/compile-cache.ts';

keepCompiledCode();
const { run } = await import('./cli.ts');
process.exitCode = await run();
