#!/usr/bin/env node
/** ctr-client: sends Criteo-format rows to serving and reports speed and quality of the answers. */
import { runProgram } from '../../lib/platform/program.ts';
import { run } from './cli.ts';

runProgram(run);
