#!/usr/bin/env node
/** score: the scores of a file of rows, computed in this process by the engine of serving. */
import { runCli } from '../../lib/platform/cli.ts';
import { runProgram } from '../../lib/platform/program.ts';
import { createProgram } from './cli.ts';

runProgram(() => runCli(createProgram()));
