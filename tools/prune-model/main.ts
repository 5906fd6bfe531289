#!/usr/bin/env node
/** `prune-model`: from a trained model to a pruned graph and its tables. */
import { runProgram } from '../../lib/platform/program.ts';
import { run } from './cli.ts';

runProgram(run);
