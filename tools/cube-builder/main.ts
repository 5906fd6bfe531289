#!/usr/bin/env node
/** The cube-builder command. */
import { exitWithParent } from '../../lib/platform/one-shot-process.ts';
import { run } from './cli.ts';

exitWithParent();
process.exitCode = await run();
