#!/usr/bin/env node
/** The cube-check command. */
import { run } from './cli.ts';

process.exitCode = await run();
