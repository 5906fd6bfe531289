#!/usr/bin/env node
/** The cube-check command. */
import { runProgram } from '../../lib/platform/program.ts';
import { run } from './cli.ts';

runProgram(run);
