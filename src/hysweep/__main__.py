from hysweep.cli import main

main()
