#!/usr/bin/env node
/** `hypercube features`: writes and checks features.json. */
import { runProgram } from '../../../lib/platform/program.ts';
import { run } from './cli.ts';

runProgram(run);
