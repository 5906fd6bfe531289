#!/usr/bin/env node
/** example-models: makes and trains the models of the folder `examples`. */
import { runProgram } from '../../lib/platform/program.ts';
import { run } from './cli.ts';

runProgram(() => run(process.argv.slice(2)));
