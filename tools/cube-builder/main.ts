#!/usr/bin/env node
/** The cube-builder command. */
import { exitWithParent } from '../../lib/platform/one-shot-process.ts';
import { runProgram } from '../../lib/platform/program.ts';
import { run } from './cli.ts';

exitWithParent();
runProgram(run);
