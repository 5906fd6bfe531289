#!/usr/bin/env node
/** generate-rows: labelled Criteo-format rows whose true click probability is known. */
import { runProgram } from '../../lib/platform/program.ts';
import { run } from './cli.ts';

runProgram(() => run(process.argv.slice(2)));
