#!/usr/bin/env node
/** score: the scores of a file of rows, computed in this process by the engine of serving. */
import { keepCompiledCode } from '../../lib/platform/compile-cache.ts';

keepCompiledCode();
const { runCli } = await import('../../lib/platform/cli.ts');
const { createProgram } = await import('./cli.ts');
process.exitCode = await runCli(createProgram());
