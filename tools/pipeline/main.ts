#!/usr/bin/env node
/** pipeline: says from the tracer of a pipeline where its time goes. */
import { runProgram } from '../../lib/platform/program.ts';
import { run } from './cli.ts';

runProgram(run);
