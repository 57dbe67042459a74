"""The families of faults that arms and agents may be developed on. Others are held out (`oven.held_out`)."""
