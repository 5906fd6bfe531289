#!/usr/bin/env node
/** keys: makes, lists, rotates and ends API keys. */
import { runProgram } from '../../lib/platform/program.ts';
import { run } from './cli.ts';

runProgram(run);
