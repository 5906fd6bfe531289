#!/usr/bin/env node
/** cube-server: one replica of one shard. */
import { runProgram } from '../lib/platform/program.ts';
import { run } from './cli.ts';

runProgram(run);
